# Vulkan on llvmpipe and, where it was built (scripts/build arm64), an arm64 worker under qemu-user.
if(LINKCPP_TESTS)
  linkcpp_measuring_test(e2e.devices 900 ${CMAKE_CURRENT_LIST_DIR}/devices.py --quick)
endif()
