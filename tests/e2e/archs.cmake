# The architecture gate, in parts that ctest runs side by side.
if(LINKCPP_TESTS AND NOT LINKCPP_SANITIZE)  # the engine's own test program is not built with sanitizers
  set(archs_environment "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_PLUGIN=$<TARGET_FILE:ggml-linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:logits>")
  foreach(part RANGE 1 6)
    add_test(NAME e2e.archs-${part} COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/archs.py --shard ${part}/6)
    list(APPEND archs_tests e2e.archs-${part})
  endforeach()
  add_test(NAME e2e.archs-list COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/archs.py --check-list)
  set_tests_properties(${archs_tests} e2e.archs-list PROPERTIES LABELS e2e TIMEOUT 900 ENVIRONMENT "${archs_environment}")
endif()
