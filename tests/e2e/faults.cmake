# What goes wrong in real life, and the short form of the stress test.
add_test(NAME e2e.faults COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/faults.py)
add_test(NAME e2e.stress COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/stress.py --seconds 60 --seed 1)
set_tests_properties(e2e.faults e2e.stress PROPERTIES LABELS e2e TIMEOUT 600 RUN_SERIAL ON
  ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>")
