# End-to-end tests: scripts over the built programs. Every file e2e/*.cmake registers those of one subject.
if(LINKCPP_TESTS AND TARGET linkcpp AND TARGET ggml-linkcpp)
  file(GLOB e2e_parts CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/e2e/*.cmake)
  foreach(part ${e2e_parts})
    include(${part})
  endforeach()
endif()
