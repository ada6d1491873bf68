# From relays to direct paths, behind NATs. Needs the right to make network namespaces.
add_test(NAME e2e.paths COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/paths.py)
set_tests_properties(e2e.paths PROPERTIES
  ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_PLUGIN=$<TARGET_FILE:ggml-linkcpp>;LINKCPP_LAB=$<TARGET_FILE_DIR:lab_emulate>"
  TIMEOUT 500 LABELS e2e RUN_SERIAL ON)
