# The claims of the measuring scripts that are quick and do not depend on how busy the machine is.
function(linkcpp_measuring_test name timeout)
  add_test(NAME ${name} COMMAND python3 -B ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS e2e TIMEOUT ${timeout} RUN_SERIAL ON
    ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_PLUGIN=$<TARGET_FILE:ggml-linkcpp>;LINKCPP_TOOLS=$<TARGET_FILE_DIR:logits>")
endfunction()
if(LINKCPP_TESTS)
  linkcpp_measuring_test(e2e.identity 300 ${CMAKE_CURRENT_LIST_DIR}/identity.py --quick)
  # Vulkan on llvmpipe and, where it was built (scripts/build arm64), an arm64 worker under qemu-user.
  linkcpp_measuring_test(e2e.devices 900 ${CMAKE_CURRENT_LIST_DIR}/devices.py --quick)
  linkcpp_measuring_test(e2e.bytes 300 ${CMAKE_CURRENT_LIST_DIR}/bytes.py)
endif()
