# The doctor, behind NATs of all kinds. Needs the right to make network namespaces.
add_test(NAME e2e.doctor COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/doctor.py)
set_tests_properties(e2e.doctor PROPERTIES
  ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:link_bench>;LINKCPP_LAB=$<TARGET_FILE_DIR:lab_emulate>"
  TIMEOUT 400 LABELS e2e RUN_SERIAL ON)
