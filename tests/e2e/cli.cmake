# End-to-end tests of the commands: real processes, real ports, the engine's own server.
set(cli_environment "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>;LINKCPP_MODELS=${CMAKE_SOURCE_DIR}/models")

add_test(NAME e2e.containerfile COMMAND ${CMAKE_SOURCE_DIR}/packaging/make-containerfile --check)
add_test(NAME e2e.launcher COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/launcher $<TARGET_FILE_DIR:linkcpp>)
add_test(NAME e2e.commands COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/commands.py)
add_test(NAME e2e.serve COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/serve.py)
add_test(NAME e2e.demo COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/demo.py)
add_test(NAME e2e.gate COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/gate.py)
add_test(NAME e2e.transports COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/transports.py)
set_tests_properties(e2e.containerfile e2e.launcher e2e.commands e2e.serve e2e.demo e2e.gate e2e.transports
  PROPERTIES ENVIRONMENT "${cli_environment}" TIMEOUT 600 LABELS e2e)
# These run several engines at once and watch the clock.
set_tests_properties(e2e.serve e2e.demo e2e.gate e2e.transports PROPERTIES RUN_SERIAL ON)
