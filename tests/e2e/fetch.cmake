# Fetching slices: static web servers, other nodes, kills, bad sources.
add_test(NAME e2e.fetch COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/fetch.py)
set_tests_properties(e2e.fetch PROPERTIES ENVIRONMENT "LINKCPP_BINARY=$<TARGET_FILE:linkcpp>" TIMEOUT 300 LABELS e2e)
