# WebSocket through nginx.
add_test(NAME e2e.websocket COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/websocket.py)
set_tests_properties(e2e.websocket PROPERTIES ENVIRONMENT "LINKCPP_TOOLS=$<TARGET_FILE_DIR:link_bench>" TIMEOUT 300 LABELS e2e)
