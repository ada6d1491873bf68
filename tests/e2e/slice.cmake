# Slicing, and serving from a backbone without experts.
if(LINKCPP_TESTS)
  add_test(NAME e2e.slice COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/slice.py)
  set_tests_properties(e2e.slice PROPERTIES LABELS e2e TIMEOUT 600 RUN_SERIAL ON
    ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_PLUGIN=$<TARGET_FILE:ggml-linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:logits>")
endif()
if(LINKCPP_TESTS)
  add_test(NAME e2e.memory COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/memory.py)
  set_tests_properties(e2e.memory PROPERTIES LABELS e2e TIMEOUT 300 RUN_SERIAL ON
    ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_PLUGIN=$<TARGET_FILE:ggml-linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:logits>")
endif()
