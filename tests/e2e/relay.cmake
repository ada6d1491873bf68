# The relay. Needs the right to make network namespaces.
add_test(NAME e2e.relay COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/relay.py)
set_tests_properties(e2e.relay PROPERTIES
  ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:link_bench>;LINKCPP_LAB=$<TARGET_FILE_DIR:lab_emulate>"
  TIMEOUT 400 LABELS e2e RUN_SERIAL ON)
