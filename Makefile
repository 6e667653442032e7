# dlc: build, tests and house-keeping. `make` builds build/dlc; `make quickstart` and `make test` also install what is missing.
CC      ?= cc
OPT     ?= -O2 -g
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion \
           -Wsign-conversion -Wvla -Wundef -Wcast-qual -Wformat=2 $(WERROR)
CFLAGS  := -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) $(EXTRA) -MMD -MP -fopenmp
B       := build

DLC_SRC := dlc.c $(wildcard ir/base/*.c ir/*.c frontend/*.c passes/*.c codegen/*.c)
GEN_SRC := $(B)/frontend/parser.c $(B)/frontend/scanner.c $(B)/frontend/std_dl.c $(B)/codegen/kernel_h.c
RT_SRC  := $(wildcard runtime/*.c)
DLC_OBJ := $(DLC_SRC:%.c=$(B)/%.o) $(GEN_SRC:%.c=%.o)
RT_OBJ  := $(RT_SRC:%.c=$(B)/%.o)

all: $(B)/dlc $(B)/libdlrt.a

$(B)/dlc: $(DLC_OBJ) $(B)/runtime/prim_dnnl.o
	$(CC) $(CFLAGS) -o $@ $^ -ldnnl -lm $(LDEXTRA)
$(B)/libdlrt.a: $(RT_OBJ)
	@rm -f $@
	ar rcs $@ $^
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
# The header that every generated kernel file starts with (math functions, Philox), embedded as text.
$(B)/codegen/kernel_h.c: codegen/kernel.h tools/embed
	@mkdir -p $(@D)
	tools/embed kernel_h codegen/kernel.h > $@
$(filter $(B)/frontend/%,$(DLC_OBJ)): $(B)/frontend/parser.c $(B)/frontend/scanner.c

-include $(DLC_OBJ:.o=.d) $(RT_OBJ:.o=.d)

clean:
	rm -rf $(B)
.PHONY: all clean
