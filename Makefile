# A thin face over scripts/ and the CMake presets. Everything runs in the environment that scripts/root makes where it is needed.
.DEFAULT_GOAL := help
.PHONY: help demo test build asan tsan fuzz bench format tidy clean container

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: build ## Set up, build, and run a whole swarm on this machine with the model that comes along
	./linkcpp demo

test: ## Set up, build, and run all tests (LINKCPP_QUICK=1 leaves the sanitizers out)
	scripts/test

build: ## Build everything (release)
	scripts/build release

asan: ## Build with address and undefined-behaviour sanitizers
	scripts/build asan

tsan: ## Build with the thread sanitizer
	scripts/build tsan

fuzz: ## Build the fuzzers and run each for a minute (LINKCPP_FUZZ_SECONDS=600 for ten)
	scripts/fuzz

bench: build ## Run the micro-benchmarks
	scripts/bench

format: ## Format the sources in place
	scripts/format

tidy: ## Run clang-tidy over the sources
	scripts/tidy

clean: ## Remove the build folders of this checkout
	scripts/clean

container: packaging/Containerfile ## Build a container image with the same packages
	podman build -t linkcpp -f packaging/Containerfile . || docker build -t linkcpp -f packaging/Containerfile .

packaging/Containerfile: packaging/debian-testing.list packaging/make-containerfile
	packaging/make-containerfile >$@
