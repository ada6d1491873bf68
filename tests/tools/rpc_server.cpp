// rpc_server: ggml's own RPC server on this machine's CPU, as the peer that linkcpp is compared with.
// It is the packaged backend, unchanged; this program only finds its entry point and calls it.
#include <ggml-backend.h>
#include <ggml-rpc.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  std::string endpoint = "127.0.0.1:50052";
  std::size_t threads = 1;
  CLI::App app{"Runs ggml's RPC server on the CPU, for comparisons. It ends with a signal."};
  app.add_option("ENDPOINT", endpoint, "HOST:PORT to listen on")->capture_default_str();
  app.add_option("--threads", threads, "Threads that compute")->check(CLI::Range(1, 1024))->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  ggml_backend_load_all();
  const ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
  if (rpc == nullptr) {
    std::fprintf(stderr, "rpc_server: error: the engine has no RPC backend: install libggml0-backend-rpc\n");
    return 1;
  }
  // Resolved by name, since the backend is a module that is loaded, not linked.
  using Start = decltype(&ggml_backend_rpc_start_server);
  const auto start = reinterpret_cast<Start>(ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_start_server"));
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (start == nullptr || cpu == nullptr) {
    std::fprintf(stderr, "rpc_server: error: this engine's RPC backend offers no server, or there is no CPU device\n");
    return 1;
  }
  start(endpoint.c_str(), nullptr, threads, 1, &cpu);
  std::fprintf(stderr, "rpc_server: error: the server on %s ended (is the port taken?)\n", endpoint.c_str());
  return 1;
}
