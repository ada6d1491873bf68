# Port mapping with a real router program. Needs the right to make network namespaces, and nf_tables in the kernel.
add_test(NAME e2e.port_mapping COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/port_mapping.py)
set_tests_properties(e2e.port_mapping PROPERTIES
  ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:port_map>" TIMEOUT 240 LABELS e2e)
