# Warnings, sanitizers and reproducible paths, for every target of ours.
add_library(linkcpp_options INTERFACE)
target_compile_options(linkcpp_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -Wno-missing-field-initializers "-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=")
target_include_directories(linkcpp_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(linkcpp_options INTERFACE LINKCPP_VERSION="${PROJECT_VERSION}" BOOST_ASIO_NO_DEPRECATED
  BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION)  # their bodies are compiled once, in net/asio.cpp
# GCC takes a file that is included into a unity source for a header, where a type of an unnamed namespace would be a mistake.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(linkcpp_options INTERFACE -Wno-subobject-linkage)
endif()
if(LINKCPP_SANITIZE)
  target_compile_options(linkcpp_options INTERFACE -fsanitize=${LINKCPP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(linkcpp_options INTERFACE -fsanitize=${LINKCPP_SANITIZE})
endif()
