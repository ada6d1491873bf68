// Finding the parts that work together: the plugin beside the program, the engine's server, the models that come along.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"

namespace linkcpp::serve {

/// The running program's own file.
Result<std::filesystem::path> own_program();

/// libggml-linkcpp.so: `given` if not empty, else beside the program (build tree) or in ../lib/linkcpp (installed).
Result<std::filesystem::path> find_plugin(const std::string& given);

/// liblinkcpp-holes.so, where the plugin would be: what an engine that loads a backbone without experts needs (src/holes).
Result<std::filesystem::path> find_holes_library();

/// llama-server: `given` (a path, or a name to look for in PATH). Runs it once to check that its version is the one that the
/// plugin was built for; the error names both and the remedy.
Result<std::filesystem::path> find_llama_server(const std::string& given);
/// The version in the output of `llama-server --version`; empty if there is none.
std::string parse_llama_version(const std::string& output);
/// True if the plugin, built against `built`, may be loaded into `found`: same major and minor number.
bool same_engine(const std::string& built, const std::string& found);

/// A model that comes along: in $LINKCPP_MODELS, or the installed share folder.
Result<std::filesystem::path> find_bundled_model(const std::string& name);

/// An existing regular file as an absolute path. `what` starts the error's sentence: "the model".
Result<std::filesystem::path> existing_file(const std::string& path, const std::string& what);

}  // namespace linkcpp::serve
