# The WAN lab does what a scenario says. Needs the right to make network namespaces.
add_test(NAME e2e.lab COMMAND ${CMAKE_SOURCE_DIR}/lab/selftest)
set_tests_properties(e2e.lab PROPERTIES ENVIRONMENT "LINKCPP_LAB=$<TARGET_FILE_DIR:lab_emulate>" TIMEOUT 300 LABELS e2e RUN_SERIAL ON)
