# Thin: everything real is in meson.build and scripts/.
BUILD ?= build

.PHONY: all build demo test bench lint install uninstall sim fuzz torture clean

all: build

# Always configures: a room or a test that has just been added is found.
build:
	@if [ -f $(BUILD)/build.ninja ]; then meson setup --reconfigure $(BUILD) >$(BUILD)/configure.log || { cat $(BUILD)/configure.log; exit 1; }; \
	else meson setup $(BUILD); fi
	@ninja -C $(BUILD)

demo:
	./scripts/demo

test:
	./scripts/test

lint: build
	meson test -C $(BUILD) --suite lint --print-errorlogs

# make sim SEEDS=1000000 FROM=1: seeds of the whole simulation; a seed that fails is printed with the command that repeats it, and shrunk.
SEEDS ?= 10000
FROM ?= 1
sim: build
	meson test -C $(BUILD) --suite sim --verbose
	$(BUILD)/tests/sim/cdc_sim --seeds $(SEEDS) --from $(FROM) --shrink

# Minutes long, on real PostgreSQL; writes docs/benchmarks.md. TR_BENCH_ROUNDS and TR_BENCH_SECONDS shorten it.
bench: build
	TAILRACE=$(abspath $(BUILD)/src/cli/tailrace) bash bench/run.sh

torture: build
	meson test -C $(BUILD) --suite torture --verbose

# libFuzzer needs clang, so it has a build directory of its own. Each target is fuzzed for FUZZ_SECONDS (600), one after the other; FUZZ_TARGETS names some.
# What breaks one is kept in tests/fuzz/crashes/<target> and is a test from then on.
fuzz:
	@if [ -f $(BUILD)-fuzz/build.ninja ]; then meson setup --reconfigure $(BUILD)-fuzz; \
	else CC=clang meson setup $(BUILD)-fuzz -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false; fi
	@ninja -C $(BUILD)-fuzz fuzz-targets
	tests/fuzz/run.sh $(BUILD)-fuzz $(FUZZ_TARGETS)

install: build
	meson install -C $(BUILD)

# What the last make install from this build directory put there.
uninstall:
	ninja -C $(BUILD) uninstall

clean:
	rm -rf $(BUILD) $(BUILD)-*
