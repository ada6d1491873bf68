# Shared by the scripts in this folder: where things are kept, and how to speak.
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${LINKCPP_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/linkcpp}
package_file=$project/packaging/debian-testing.list
min_llama=0.7
min_ggml=0.27

say() { printf 'linkcpp: %s\n' "$*" >&2; }
die() { printf 'linkcpp: error: %s\n' "$*" >&2; exit 1; }

package_list() { sed 's/#.*//' "$package_file" | tr -s '\n' ' '; }

# The root is keyed by the package list and the recipe, so that a change of either makes a new one.
root=$cache/root-$(cat "$package_file" "$project/scripts/root" | sha256sum | cut -c 1-12)

installed_at_least() {
  local have
  have=$(dpkg-query -W -f '${Version}' "$1" 2>/dev/null) || return 1
  have=${have#*:}
  dpkg --compare-versions "$have" ge "$2"
}

# True where the machine itself has the engine and the compiler (Debian testing, or inside the root).
native() {
  [ "${LINKCPP_FORCE_ROOT:-}" != 1 ] && installed_at_least libllama-dev "$min_llama" &&
    installed_at_least libggml-dev "$min_ggml" && command -v g++ ninja cmake >/dev/null
}

# Build folders lie outside the checkout, one set for each checkout folder. LINKCPP_BUILD_TAG makes a separate set. Inside the root the
# checkout and its set also stand at fixed places, from which everything is compiled: compilers see the same paths whatever the checkout, so
# that ccache serves all of them.
build_set=$cache/build/$(echo "$project fixed" | sha256sum | cut -c 1-8)${LINKCPP_BUILD_TAG:+-$LINKCPP_BUILD_TAG}
build_dir() { echo "$build_set/$1"; }
if native; then
  compile_source=$project compile_set=$build_set
else
  compile_source=/linkcpp/source compile_set=/linkcpp/build
fi
