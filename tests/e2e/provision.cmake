# Workers that get their experts from the backbone.
add_test(NAME e2e.provision COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/provision.py)
set_tests_properties(e2e.provision PROPERTIES
  ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:synth_model>" TIMEOUT 300 LABELS e2e RUN_SERIAL ON)
