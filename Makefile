# dlc: build, tests and house-keeping. `make` builds build/dlc; `make quickstart` and `make test` also install what is missing.
CC      ?= cc
OPT     ?= -O2 -g
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion \
           -Wsign-conversion -Wvla -Wundef -Wcast-qual -Wformat=2 $(WERROR)
CFLAGS  := -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) $(EXTRA) -MMD -MP -fopenmp
B       := build

DLC_SRC := dlc.c options.c $(wildcard ir/base/*.c ir/*.c frontend/*.c passes/*.c codegen/*.c)
GEN_SRC := $(B)/frontend/parser.c $(B)/frontend/scanner.c $(B)/frontend/std_dl.c $(B)/codegen/kernel_h.c \
           $(B)/codegen/scalar_h.c $(B)/codegen/cuda_types_h.c $(B)/codegen/cuda_kernel_h.c $(B)/codegen/cuda_special_h.c $(B)/codegen/special_h.c $(B)/codegen/product_h.c $(B)/codegen/plan_h.c $(B)/passes/picture_css.c \
           $(B)/passes/page_css.c $(B)/passes/page_js.c $(B)/passes/machines_txt.c $(B)/passes/calibrate_dl.c
# The runtime is built twice: for the CPU, and for NVIDIA cards without OpenMP and oneDNN (and without CUDA: that is
# opened when a trainer starts).
CPU_SRC  := runtime/dev_cpu.c runtime/prim_dnnl.c runtime/narrow.c
CUDA_SRC := runtime/dev_cuda.c runtime/dev_cuda_run.c runtime/dev_cuda_link.c runtime/cuda_api.c runtime/prim_cublas.c
RT_SRC   := $(filter-out $(CUDA_SRC),$(wildcard runtime/*.c))
RT_CUDA_SRC := $(filter-out $(CPU_SRC),$(wildcard runtime/*.c))
# Device text of the back end `cuda`.
GEN_SRC += $(patsubst codegen/%.cuh,$(B)/codegen/%_cuh.c,$(wildcard codegen/*.cuh))
DLC_OBJ := $(DLC_SRC:%.c=$(B)/%.o) $(GEN_SRC:%.c=%.o)
RT_OBJ  := $(RT_SRC:%.c=$(B)/%.o)
RT_CUDA_OBJ := $(RT_CUDA_SRC:%.c=$(B)/cuda/%.o)

all: $(B)/dlc $(B)/libdlrt.a $(B)/libdlrt-cuda.a

# What planning asks the library with.
ASK_OBJ := $(B)/runtime/prim_dnnl.o $(B)/runtime/narrow.o

$(B)/dlc: $(DLC_OBJ) $(ASK_OBJ)
	$(CC) $(CFLAGS) -o $@ $^ -ldnnl -ljansson -lz -lm $(LDEXTRA)
$(B)/libdlrt.a: $(RT_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(B)/libdlrt-cuda.a: $(RT_CUDA_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(B)/cuda/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(filter-out -fopenmp,$(CFLAGS)) -Wno-unknown-pragmas -I. -c -o $@ $<
$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. -Ifrontend -I$(B)/frontend -c -o $@ $<
# Generated sources are compiled without our warnings.
$(GEN_SRC:%.c=%.o): %.o: %.c
	$(CC) -std=c11 -D_GNU_SOURCE $(OPT) $(EXTRA) -MMD -MP -I. -Ifrontend -I$(B)/frontend -c -o $@ $<
$(B)/frontend/parser.c: frontend/dl.y
	@mkdir -p $(@D)
	bison -Wcounterexamples -Werror --header=$(B)/frontend/parser.h -o $@ $<
$(B)/frontend/scanner.c: frontend/dl.l $(B)/frontend/parser.c
	flex --header-file=$(B)/frontend/scanner.h -o $@ $<
$(B)/frontend/std_dl.c: models/std.dl tools/embed
	@mkdir -p $(@D)
	tools/embed std_dl models/std.dl > $@
# Texts that generated kernel files start with (math functions, Philox; kernels of their own shape; the plan), embedded.
$(B)/codegen/%_h.c: codegen/%.h tools/embed
	@mkdir -p $(@D)
	tools/embed $*_h $< > $@
$(B)/codegen/%_cuh.c: codegen/%.cuh tools/embed
	@mkdir -p $(@D)
	tools/embed $*_cuh $< > $@
$(B)/codegen/plan_h.c: runtime/plan.h tools/embed
	@mkdir -p $(@D)
	tools/embed plan_h $< > $@
# What pictures and pages of plans hold besides numbers, embedded.
$(B)/passes/%_css.c: passes/%.css tools/embed
	@mkdir -p $(@D)
	tools/embed $*_css $< > $@
$(B)/passes/%_js.c: passes/%.js tools/embed
	@mkdir -p $(@D)
	tools/embed $*_js $< > $@
# Built-in machine profiles, and what is timed for another one, embedded.
$(B)/passes/calibrate_dl.c: passes/calibrate.dl tools/embed
	@mkdir -p $(@D)
	tools/embed calibrate_dl $< > $@
$(B)/passes/%_txt.c: passes/%.txt tools/embed
	@mkdir -p $(@D)
	tools/embed $*_txt $< > $@
$(filter $(B)/frontend/%,$(DLC_OBJ)): $(B)/frontend/parser.c $(B)/frontend/scanner.c

# ---- tests: `check` is the fast whole, `check-all` adds training runs, sanitizers and a short fuzz ----
DLC_LIB   := $(filter-out $(B)/dlc.o,$(DLC_OBJ)) $(ASK_OBJ)
# tests/interp*.c is the reference interpreter, which the tests of ops, passes and kernels share; kernel_*.c the cases of
# those of kernels.
TEST_SRC  := $(filter-out tests/interp% tests/kernel_%,$(wildcard tests/*.c))
TEST_AID  := $(patsubst %.c,$(B)/%.o,$(wildcard tests/interp*.c tests/kernel_*.c))
TEST_BIN  := $(TEST_SRC:%.c=$(B)/%)
# The plan checker links with ir/ alone: it shares nothing with the planner.
CHECK_LIB := $(filter $(B)/ir/%,$(DLC_OBJ)) $(patsubst %.c,$(B)/%.o,$(wildcard passes/check_*.c))

CHECK_BIN := $(B)/tests/check_plan_test $(B)/tests/check_plan_random
$(CHECK_BIN): $(B)/%: $(B)/%.o $(CHECK_LIB)
	$(CC) $(CFLAGS) -o $@ $^ -lm $(LDEXTRA)
$(B)/tests/tensors: $(B)/tests/tensors.o
	$(CC) $(CFLAGS) -o $@ $^ -ljansson -lm $(LDEXTRA)
$(filter-out $(CHECK_BIN) $(B)/tests/tensors,$(TEST_BIN)): $(B)/%: $(B)/%.o $(TEST_AID) $(DLC_LIB)
	$(CC) $(CFLAGS) -o $@ $^ -ldnnl -lz -ljansson -lm $(LDEXTRA)

# The simulated GPU: stand-ins for the driver, NVRTC and cuBLASLt (tests/cudasim/README.md). Nothing of CUDA is needed.
# Without sanitizers: it switches stacks, and its kernels bring checks of their own.
CUDASIM     := $(B)/cudasim
CUDASIM_CC  := $(filter-out -fsanitize% -fno-sanitize%,$(CC))
CUDASIM_OBJ := $(patsubst tests/cudasim/%.c,$(CUDASIM)/%.o,$(wildcard tests/cudasim/*.c))
CUDASIM_FLAGS := $(filter-out -fopenmp -fsanitize% -fno-sanitize%,$(CFLAGS)) -fPIC -ffp-contract=off -I. -Itests/cudasim
CUDASIM_DRV := $(filter-out %/nvrtc.o %/rewrite.o %/cublaslt.o %_test.o,$(CUDASIM_OBJ))
CUDASIM_LIB := $(addprefix $(CUDASIM)/,libcuda.so.1 libnvrtc.so.13 libcublasLt.so.13)
cudasim: $(CUDASIM_LIB)
$(CUDASIM)/%.o: tests/cudasim/%.c
	@mkdir -p $(@D)
	$(CUDASIM_CC) $(CUDASIM_FLAGS) -c -o $@ $<
$(CUDASIM)/%_h.o: tests/cudasim/%.h tools/embed
	@mkdir -p $(@D)
	tools/embed cudasim_$*_h $< > $(@:.o=.c)
	$(CUDASIM_CC) -std=c11 -fPIC -c -o $@ $(@:.o=.c)
$(CUDASIM)/libcuda.so.1: $(CUDASIM_DRV)
	$(CUDASIM_CC) $(CUDASIM_FLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -lm -ldl -lpthread
$(CUDASIM)/libnvrtc.so.13: $(CUDASIM)/nvrtc.o $(CUDASIM)/rewrite.o $(CUDASIM)/device_h.o $(CUDASIM)/entry_h.o
	$(CUDASIM_CC) $(CUDASIM_FLAGS) -shared -Wl,-soname,libnvrtc.so.13 -o $@ $^
	ln -sf libnvrtc.so.13 $(@D)/libnvrtc.so.12
$(CUDASIM)/libcublasLt.so.13: $(CUDASIM)/cublaslt.o $(CUDASIM)/libcuda.so.1
	$(CUDASIM_CC) $(CUDASIM_FLAGS) -shared -Wl,-soname,libcublasLt.so.13 -Wl,-rpath,'$$ORIGIN' -o $@ $^ -lm
	ln -sf libcublasLt.so.13 $(@D)/libcublasLt.so.12
CUDASIM_BIN := $(patsubst %.o,%,$(filter %_test.o,$(CUDASIM_OBJ)))
$(CUDASIM_BIN): %: %.o $(CUDASIM_LIB)
	$(CUDASIM_CC) $(CUDASIM_FLAGS) -o $@ $< -L$(CUDASIM) -l:libcuda.so.1 -l:libnvrtc.so.13 -l:libcublasLt.so.13 -lm
cudasim-test: cudasim $(CUDASIM_BIN)

# What a machine with a GPU needs of this tree (tools/gpu-check): its tests link without oneDNN.
GPU_BIN := $(addprefix $(B)/gpu-check/,cuda_kernels cuda_tensor)
$(GPU_BIN): $(B)/gpu-check/%: $(B)/tests/%.o $(TEST_AID) $(filter-out $(ASK_OBJ),$(DLC_LIB)) $(B)/tests/cuda/no_dnnl.o
	@mkdir -p $(@D)
	$(CC) $(filter-out -fopenmp,$(CFLAGS)) -s -o $@ $^ -l:libgomp.a -l:libz.a -l:libjansson.a -lm -ldl -lpthread $(LDEXTRA)
gpu-check-build: all $(GPU_BIN)
	@B=$(B) tools/gpu-check build
gpu-check:
	@B=$(B) tools/gpu-check run

deps:
	@tools/install-deps
test: deps
	@echo "building dlc and its tests"
	+@$(MAKE) -s --no-print-directory -j$$(nproc) check
check: all $(TEST_BIN) cudasim-test
	@B=$(B) tests/all
check-all: all $(TEST_BIN) cudasim-test
	@tools/install-deps check-all || echo "check-all: parts that need the missing packages are left out"
	+@B=$(B) tests/all --full
update: all
	@B=$(B) tests/run --update

SAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined
# Trainers are compiled with CC from the environment, our own objects with EXTRA.
san:
	+@CC="$(CC) $(SAN)" $(MAKE) -s --no-print-directory B=build-san OPT="-O1 -g" EXTRA="$(SAN)" SANITIZED=1 check
hardmem:
	+@CC="$(CC) $(SAN)" $(MAKE) -s --no-print-directory B=build-hardmem OPT="-O1 -g" EXTRA="-DHARDMEM $(SAN)" SANITIZED=1 check
# make fuzz SECONDS=600: libFuzzer (clang) on the model parser and the IR reader.
SECONDS ?= 60
fuzz: all
	+@tests/fuzz/run $(SECONDS)
print-lib:
	@echo $(DLC_LIB)

# What README.md and docs/planning.md show is what dlc prints; workspaces, and so bytes, depend on the processor.
readme: all
	@tests/readme

# ---- house ----
quickstart: deps
	@echo "building dlc"
	+@$(MAKE) -s --no-print-directory -j$$(nproc) all
	@tools/quickstart
bench: all
	@tools/bench-vs-torch.py
# make bench-plan PARTS="traces small": some of the parts of bench/plan.py.
bench-plan: all
	@bench/plan.py $(PARTS)
bench-learn: all
	@bench/learn.py $(ROWS)
# Predicted against measured step times; the last results are kept in bench/.
bench-predict: all
	@mkdir -p bench
	@tools/bench-predict --out bench/predict.txt
lines:
	@wc -l $$(git ls-files '*.[chyl]' '*.def' '*.dl' | grep -v '^tests/') | sort -n
format:
	clang-format -i $$(git ls-files '*.[ch]')
analyze:
	+@$(MAKE) --no-print-directory B=build-analyze OPT="-O1 -fanalyzer" all
tidy: all
	clang-tidy --quiet $$(git ls-files '*.c' | grep -v '^tests/fuzz/') -- -std=c11 -D_GNU_SOURCE -I. -Ifrontend -I$(B)/frontend

PREFIX ?= /usr/local
install: all
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib/dlc include/dlc share/dlc/models)
	install -m 755 $(B)/dlc $(DESTDIR)$(PREFIX)/bin/dlc
	install -m 644 $(B)/libdlrt.a $(B)/libdlrt-cuda.a $(DESTDIR)$(PREFIX)/lib/dlc
	install -m 644 runtime/dl.h $(DESTDIR)$(PREFIX)/include/dlc
	install -m 644 models/*.dl $(DESTDIR)$(PREFIX)/share/dlc/models

help:
	@sed -n 's/^## //p' $(firstword $(MAKEFILE_LIST))

-include $(DLC_OBJ:.o=.d) $(RT_OBJ:.o=.d) $(RT_CUDA_OBJ:.o=.d) $(TEST_BIN:=.d) $(TEST_AID:.o=.d) $(CUDASIM_OBJ:.o=.d)

clean:
	rm -rf $(B)
.PHONY: all clean deps cudasim cudasim-test gpu-check gpu-check-build test check check-all update san hardmem fuzz readme print-lib quickstart bench bench-plan bench-predict bench-learn \
	lines format analyze tidy install help

## make              builds build/dlc, build/libdlrt.a and build/libdlrt-cuda.a
## make quickstart   installs what is missing, builds, trains a network on Fashion-MNIST within 48 MiB, in one to three minutes
## make test         installs what is missing, builds, runs `make check`
## make check        all fast tests (two to seven minutes on two free cores); the last line is `N passed, N failed`;
##                   tests/README.md says what each part proves and how to run one alone
## make cudasim      the simulated GPU, build/cudasim/ (tests/cudasim/README.md)
## make gpu-check    on a machine with a GPU: results and speed, a table last, in less than 8 minutes, from a tree whose `make
##                   gpu-check-build` was run elsewhere; tools/gpu-check says what it needs and how to leave parts out
## make check-all    the same and the long ones: budget sweeps, kills, sanitizers
## make update       rewrites the expected output of the golden tests (read the diff)
## make san hardmem  `check` under AddressSanitizer and UBSan; hardmem: each object a malloc of its own
## make readme       the numbers in README.md and docs/planning.md against what dlc prints here
## make fuzz         SECONDS=60 of fuzzing the model parser and the IR reader (clang)
## make bench        step times beside PyTorch's, same threads, same run
## make bench-plan   how good plans are: peers, bounds, exact optima; what changed against bench/plan.txt (minutes; PARTS="traces small")
## make bench-learn  what the models learn in full (hours; ROWS="gpt-char llama"), kept in bench/learn.txt
## make bench-predict  calibrates, then predicted beside measured step times of ten plans a model; results in bench/predict.txt
## make lines format analyze tidy   sizes; clang-format; gcc -fanalyzer; clang-tidy
## make clean        removes build/ (the sanitizers' build-san/ and build-hardmem/ stay)
## make install      PREFIX=/usr/local
