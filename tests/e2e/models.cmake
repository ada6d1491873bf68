# The table of models and what it is made of.
if(LINKCPP_TESTS)
  add_test(NAME models.up_to_date COMMAND ${CMAKE_SOURCE_DIR}/models/make-table --check)
  add_test(NAME e2e.models COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/models.py)
  set_tests_properties(models.up_to_date e2e.models PROPERTIES TIMEOUT 300 LABELS e2e
    ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:synth_model>")
endif()
