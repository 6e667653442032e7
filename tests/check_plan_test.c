/* The plan checker against planted faults: each case is a small placed function, in IR text, and the fault that must
 * be found in it (or none). A case is one line of what goes wrong in practice, when a planner is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/ir.h"
#include "../passes/check_plan.h"

typedef enum Spoil {
	SPOIL_NOT,
	SPOIL_ORDER, /* node `at` of @step (from 0) moves to the end */
	SPOIL_BODY,  /* the last but one node of the last kernel's body moves to the front */
	SPOIL_PLACE, /* result 0 of node `at` moves by 16 bytes */
	SPOIL_READ,  /* node `at` of @step is cloned to the end */
	SPOIL_TWICE  /* the variable of the last node, an assign, becomes that of node `at` */
} Spoil;

typedef struct Case {
	const char *name;
	const char *fault; /* part of the one line expected; NULL: none */
	const char *body;  /* of @step, after the variables and the input below */
	Spoil spoil;       /* what the reader's verifier would refuse as text is done to the graph */
	int at;
} Case;

/* f32[16] has 64 bytes: one place each. %0 is variable w at 0, %1 variable s at 0x40, %2 the input at 0x80. */
static const char head[] = "module \"t\" batch 4 {\n"
			   "  var \"w\" : f32[16] @ 0x0 param init const(0)\n"
			   "  var \"s\" : f32[4] @ 0x40 stat init const(0)\n"
			   "\n"
			   "  func @step batch 4 arena 1024 host 256 {\n"
			   "    %0 = var {name = \"w\"} : f32[16] @ 0x0\n"
			   "    %1 = var {name = \"s\"} : f32[4] @ 0x40\n"
			   "    %2 = input {name = \"d.x\"} : f32[16] @ 0x80\n";
static const char tail[] = "  }\n"
			   "}\n";

/* Kernels of one operand %x and two, %x and %y, at a place. */
#define RELU(r, x, at)                                                                                               \
	"    " r " = fused " x " : f32[16] @ " at " {\n"                                                             \
	"      (%a0 : f32[16])\n"                                                                                    \
	"      %b0 = relu %a0 : f32[16]\n"                                                                           \
	"      yield %b0\n"                                                                                          \
	"    }\n"
#define ADD(r, x, y, at)                                                                                             \
	"    " r " = fused " x ", " y " : f32[16] @ " at " {\n"                                                      \
	"      (%a0 : f32[16], %a1 : f32[16])\n"                                                                     \
	"      %b0 = add %a0, %a1 : f32[16]\n"                                                                       \
	"      yield %b0\n"                                                                                          \
	"    }\n"
/* Subtracts %x from the variable w in place. */
#define UPDATE(x)                                                                                                    \
	"    fused %0, " x " {\n"                                                                                    \
	"      (%a0 : f32[16], %a1 : f32[16])\n"                                                                     \
	"      %b0 = sub %a0, %a1 : f32[16]\n"                                                                       \
	"      assign %a0, %b0\n"                                                                                    \
	"      yield\n"                                                                                              \
	"    }\n"
#define OUT(x) "    output " x " {name = \"loss\"}\n"
/* A sum carried through four trips at 0x100, started by %3; the body is given. */
#define LOOP(acc, body)                                                                                              \
	RELU("%3", "%2", "0x100")                                                                                    \
	"    %4 = loop %3 {trips = 4, batch = 1, base = 0} : f32[16] @ 0x100 {\n"                                                         \
	"      (%a0 : f32[16] @ " acc ")\n" body "    }\n" OUT("%4")

#define SEND(h, x, at) "    " h " = send " x " : f32[16] @ " at "\n"
#define FETCH(y, h, at) "    " y " = fetch " h " : f32[16] @ " at "\n"
/* %3 is sent from 0xc0; `other` is made at a place; %3 comes back as %6 (to the printer, %7) and is read, with `meanwhile` during its copy. */
#define AWAY(other, place, meanwhile)                                                                                \
	RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") RELU("%1a", "%3", "0x100") "    sent %3, %4\n"              \
	RELU(other, "%1a", place) FETCH("%6", "%4", "0x140") meanwhile "    fetched %6\n" ADD("%8", "%6", other, "0x1c0")

/* The batch of 4 as three samples and one: loops `first` and `second`, whose sum starts with `from`, at 0x100. */
#define SUMMING(r, from, samples)                                                                                    \
	"    " r " = loop " from " {" samples "} : f32[16] @ 0x100 {\n"                                               \
	"      (%a0 : f32[16] @ 0x100)\n"                                                                            \
	"      %b0 = fused %a0, %2 : f32[16] @ 0x100 {\n"                                                            \
	"        (%a0 : f32[16], %a1 : f32[16])\n"                                                                   \
	"        %b0 = add %a0, %a1 : f32[16]\n"                                                                     \
	"        yield %b0\n"                                                                                        \
	"      }\n"                                                                                                  \
	"      yield %b0\n    }\n"
#define UNEVEN(first, second) RELU("%3", "%2", "0x100") SUMMING("%4", "%3", first) SUMMING("%5", "%4", second) OUT("%5")

/* Commas in texts are inside strings, so the body is one argument. */
#define CASE(name, fault, body)             { name, fault, body, SPOIL_NOT, 0 }
#define SPOILED(name, fault, body, how, at) { name, fault, body, how, at }

static const Case cases[] = {
	CASE("a plain chain", NULL, RELU("%3", "%2", "0xc0") ADD("%4", "%3", "%0", "0x100") OUT("%4")),
	CASE("storage used again after the last read", NULL,
	  RELU("%3", "%2", "0xc0") RELU("%4", "%3", "0x100") RELU("%5", "%4", "0xc0") OUT("%5")),
	CASE("in place, operand dies", NULL, RELU("%3", "%2", "0x80") OUT("%3")),
	CASE("overwritten before its use", "reads %3 at 0xc0",
	  RELU("%3", "%2", "0xc0") RELU("%4", "%2", "0xc0") ADD("%5", "%3", "%4", "0x100") OUT("%5")),
	CASE("overwritten in part", "but 0xc0 was last written by %4",
	  RELU("%3", "%2", "0xc0") "    %4 = const {value = 1} : f32[4] @ 0xc0\n" RELU("%5", "%3", "0x100")
	  OUT("%5") OUT("%4")),
	CASE("in place over an operand that lives on", "reads %2 at 0x80",
	  RELU("%3", "%2", "0x80") ADD("%4", "%3", "%2", "0xc0") OUT("%4")),
	CASE("a value without a place", "has no place", RELU("%3", "%2", "0xc0")
	  "    %4 = const {value = 1} : f32[16]\n" ADD("%5", "%3", "%4", "0x100") OUT("%5")),
	CASE("an output that does not survive", "leaves for the host %3",
	  RELU("%3", "%2", "0xc0") OUT("%3") RELU("%4", "%2", "0xc0") OUT("%4")),

	/* copies to host memory and back: %3 goes from 0xc0, where %5 lies then, and comes back to 0x140 */
	CASE("a value waits in host memory", NULL, AWAY("%5", "0xc0", "") OUT("%8")),
	CASE("sent bytes overwritten too early", "sent %3 (case.ir:20): reads %3 at 0xc0..0x100, but 0xc0 was last written by %5 of node 5",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") RELU("%5", "%2", "0xc0") "    sent %3, %4\n" OUT("%5")),
	CASE("taken over in place while it is sent", "reads %3 at 0xc0",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") RELU("%5", "%3", "0xc0") "    sent %3, %4\n" OUT("%5")),
	CASE("read before it has come back", "reads %7 before 'fetched': its copy may not have ended",
	  AWAY("%5", "0xc0", RELU("%7", "%6", "0x180")) OUT("%7") OUT("%8")),
	CASE("a view read before it has come back", "reads %8 before 'fetched'",
	  AWAY("%5", "0xc0", "    %7 = reshape %6 : f32[4,4] @ 0x140\n"
	  "    %9 = matmul %7, %7 {ta = false, tb = false} : f32[4,4] @ 0x180\n") OUT("%9") OUT("%8")),
	CASE("bytes that a copy is filling taken by another value", "reads %7 at 0x140..0x180, but 0x140 was last written by %8",
	  AWAY("%5", "0xc0", RELU("%7", "%2", "0x140")) OUT("%7") OUT("%8")),
	CASE("bytes filled before they are free", "reads %6 at 0x140",
	  AWAY("%5", "0x140", "") OUT("%8")),
	CASE("fetched before it has been sent", "reads %4 before 'sent': its copy may not have ended",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") FETCH("%5", "%4", "0x100")
	  "    sent %3, %4\n    fetched %5\n" OUT("%5")),
	CASE("places in host memory that overlap", "reads %4 at 0x0..0x40 of host memory, but 0x0 was last written by %6",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") "    sent %3, %4\n" RELU("%5", "%2", "0x100") SEND("%6", "%5", "0x0")
	  "    sent %5, %6\n" FETCH("%7", "%4", "0x140") "    fetched %7\n" OUT("%7")),
	CASE("host memory taken again while it is read", "of host memory",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") "    sent %3, %4\n" RELU("%5", "%2", "0x100") FETCH("%6", "%4", "0x140")
	  SEND("%7", "%5", "0x0") "    sent %5, %7\n    fetched %6\n" OUT("%6")),
	CASE("host memory used again", NULL,
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") "    sent %3, %4\n" FETCH("%5", "%4", "0x140") "    fetched %5\n"
	  SEND("%6", "%5", "0x0") "    sent %5, %6\n" FETCH("%7", "%6", "0x180") "    fetched %7\n" OUT("%7")),
	CASE("beyond host memory", "the copy ends at 0x140, expected at most the host memory's 0x100",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x100") "    sent %3, %4\n" OUT("%3")),
	CASE("no place in host memory", "the copy has no place in the host memory",
	  RELU("%3", "%2", "0xc0") "    %4 = send %3 : f32[16]\n    sent %3, %4\n" OUT("%3")),
	CASE("ended twice", "ends the copy to %4 a second time",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") "    sent %3, %4\n    sent %3, %4\n" OUT("%3")),
	CASE("never ended", "1 copy is still under way at the end",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") OUT("%3")),
	CASE("under way where a loop starts", "1 copy is still under way at the start of a loop",
	  RELU("%3", "%2", "0xc0") SEND("%4", "%3", "0x0") RELU("%5", "%2", "0x100")
	  SUMMING("%6", "%5", "trips = 4, batch = 1, base = 0") "    sent %3, %4\n" OUT("%6")),
	CASE("under way from trip to trip", "1 copy is still under way at the end of a trip",
	  RELU("%3", "%2", "0x100") "    %4 = loop %3 {trips = 4, batch = 1, base = 0} : f32[16] @ 0x100 {\n"
	  "      (%a0 : f32[16] @ 0x100)\n" RELU("%b0", "%2", "0xc0") SEND("%b1", "%b0", "0x0") RELU("%b2", "%a0", "0x100")
	  "      yield %b2\n    }\n" OUT("%4")),
	CASE("a replay of what came back", NULL,
	  RELU("%3", "%2", "0xc0") RELU("%4", "%3", "0x100") SEND("%5", "%3", "0x0") "    sent %3, %5\n" FETCH("%6", "%5", "0x140")
	  "    fetched %6\n" "    %7 = replay(%4) fused %6 : f32[16] @ 0x180 {\n      (%a0 : f32[16])\n      %b0 = relu %a0 : f32[16]\n"
	  "      yield %b0\n    }\n" ADD("%8", "%4", "%7", "0x1c0") OUT("%8")),

	/* samples */
	CASE("three samples and one", NULL,
	  UNEVEN("trips = 1, batch = 3, base = 0", "trips = 1, batch = 1, base = 3")),
	CASE("the batch twice over", NULL,
	  UNEVEN("trips = 2, batch = 2, base = 0", "trips = 4, batch = 1, base = 0")),
	CASE("a sample that is seen twice", "begins with sample 2, expected 3",
	  UNEVEN("trips = 1, batch = 3, base = 0", "trips = 2, batch = 1, base = 2")),
	CASE("a sample that is left out", "begins with sample 3, expected 2",
	  UNEVEN("trips = 2, batch = 1, base = 0", "trips = 1, batch = 1, base = 3")),
	CASE("samples from the end alone", "begins with sample 2, expected 0",
	  UNEVEN("trips = 1, batch = 2, base = 2", "trips = 1, batch = 2, base = 2")),
	CASE("the last micro-batch run twice", "begins with sample 3, expected 0",
	  RELU("%3", "%2", "0x100") SUMMING("%4", "%3", "trips = 1, batch = 3, base = 0")
	  SUMMING("%5", "%4", "trips = 1, batch = 1, base = 3") SUMMING("%6", "%5", "trips = 1, batch = 1, base = 3") OUT("%6")),
	CASE("no last micro-batch", "ends with sample 3 of a batch of 4, and nothing goes on with the rest",
	  RELU("%3", "%2", "0x100") SUMMING("%4", "%3", "trips = 1, batch = 3, base = 0") OUT("%4")),
	CASE("a last micro-batch with sums of its own", "does not start with the sums of node",
	  RELU("%3", "%2", "0x100") SUMMING("%4", "%3", "trips = 1, batch = 3, base = 0")
	  RELU("%5", "%4", "0x140") "    %6 = loop %5 {trips = 1, batch = 1, base = 3} : f32[16] @ 0x140 {\n"
	  "      (%a0 : f32[16] @ 0x140)\n      yield %a0\n    }\n" OUT("%6")),

	/* variables */
	CASE("an update in place", NULL, RELU("%3", "%2", "0xc0") UPDATE("%3") OUT("%3")),
	SPOILED("read after its assign", "reads variable 'w' after its assign",
	  ADD("%3", "%0", "%2", "0xc0") UPDATE("%2"), SPOIL_ORDER, 3),
	SPOILED("a view read after the assign", "reads variable 'w' after its assign",
	  "    %3 = reshape %0 : f32[4,4] @ 0x0\n"
	  "    %4 = const {value = 2} : f32[4,4] @ 0x100\n"
	  "    %5 = matmul %3, %4 {ta = false, tb = false} : f32[4,4] @ 0xc0\n" UPDATE("%2"), SPOIL_ORDER, 5),
	SPOILED("assigned twice", "a second time", UPDATE("%2") "    assign %1, %1\n", SPOIL_TWICE, 0),
	CASE("a result over a variable", "variable 'w' at 0x0 is left overwritten",
	  RELU("%3", "%2", "0x0") RELU("%4", "%3", "0xc0") OUT("%4")),
	SPOILED("read in the kernel after its assign", "reads operand 0, %0, variable 'w', after it has assigned it",
	  "    %3 = fused %0, %2 : f32[16] @ 0xc0 {\n"
	  "      (%a0 : f32[16], %a1 : f32[16])\n"
	  "      %b0 = add %a0, %a1 : f32[16]\n"
	  "      assign %a0, %a1\n"
	  "      yield %b0\n"
	  "    }\n", SPOIL_BODY, 0),
	CASE("assigned while read in another order", "out of step",
	  "    %3 = reshape %0 : f32[4,4] @ 0x0\n"
	  "    fused %3 {\n"
	  "      (%a0 : f32[4,4])\n"
	  "      %b0 = transpose %a0 {perm = [1,0]} : f32[4,4]\n"
	  "      assign %a0, %b0\n"
	  "      yield\n"
	  "    }\n"),

	/* workspaces and results of one node */
	CASE("a workspace of its own", NULL,
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = matmul %3, %3 {ta = false, tb = false} : f32[4,4] @ 0xc0 work 0x100+100\n" OUT("%4")),
	CASE("a workspace over an operand", "the workspace at 0x80 overlaps operand 0",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = const {value = 2} : f32[4,4] @ 0xc0\n"
	  "    %5 = matmul %3, %4 {ta = false, tb = false} : f32[4,4] @ 0x100 work 0x80+32\n" OUT("%5")),
	CASE("a workspace over the result", "overlaps the workspace",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = matmul %3, %3 {ta = false, tb = false} : f32[4,4] @ 0x100 work 0xc0+128\n" OUT("%4")),
	CASE("a workspace over a value that is read later", "was last written by the workspace of node",
	  RELU("%3", "%2", "0xc0") "    %4 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %5 = matmul %4, %4 {ta = false, tb = false} : f32[4,4] @ 0x100 work 0xc0+64\n" OUT("%5") OUT("%3")),
	CASE("results over each other", "overlaps result 0",
	  "    %3, %4 = fused %2 : f32[16] @ 0xc0, f32[16] @ 0xc0 {\n"
	  "      (%a0 : f32[16])\n"
	  "      %b0 = relu %a0 : f32[16]\n"
	  "      %b1 = neg %a0 : f32[16]\n"
	  "      yield %b0, %b1\n"
	  "    }\n" OUT("%4")),

	/* in place */
	CASE("a product over its operand", "overlaps operand 0",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = const {value = 2} : f32[4,4] @ 0xc0\n"
	  "    %5 = matmul %3, %4 {ta = false, tb = false} : f32[4,4] @ 0x80\n" OUT("%5")),
	CASE("a product over the sum that it goes on with", NULL,
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = const {value = 2} : f32[4,4] @ 0xc0\n"
	  "    %5 = matmul %3, %3, %4 {ta = false, tb = false} : f32[4,4] @ 0xc0\n" OUT("%5")),
	CASE("a product beside the sum that it goes on with", NULL,
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = const {value = 2} : f32[4,4] @ 0xc0\n"
	  "    %5 = matmul %3, %3, %4 {ta = false, tb = false} : f32[4,4] @ 0x100\n" OUT("%4") OUT("%5")),
	CASE("a product over a sum that lives on", "reads %4 at 0xc0",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = const {value = 2} : f32[4,4] @ 0xc0\n"
	  "    %5 = matmul %3, %3, %4 {ta = false, tb = false} : f32[4,4] @ 0xc0\n"
	  "    %6 = matmul %5, %4 {ta = false, tb = false} : f32[4,4] @ 0x100\n" OUT("%6")),
	CASE("a product over a sum that is its factor too", "overlaps operand 0",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = const {value = 2} : f32[4,4] @ 0xc0\n"
	  "    %5 = matmul %3, %4, %3 {ta = false, tb = false} : f32[4,4] @ 0x80\n" OUT("%5")),
	CASE("a product over another operand than its sum", "overlaps operand 1",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = const {value = 2} : f32[4,4] @ 0xc0\n"
	  "    %5 = const {value = 3} : f32[4,4] @ 0x100\n"
	  "    %6 = matmul %3, %4, %5 {ta = false, tb = false} : f32[4,4] @ 0xc0\n" OUT("%6")),
	CASE("over a broadcast operand", "the ranges are not the same",
	  "    %3 = const {value = 1} : f32[4] @ 0xc0\n"
	  "    %4 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %5 = fused %4, %3 : f32[4,4] @ 0xc0 {\n"
	  "      (%a0 : f32[4,4], %a1 : f32[4])\n"
	  "      %b0 = add %a0, %a1 : f32[4,4]\n"
	  "      yield %b0\n"
	  "    }\n" OUT("%5")),
	CASE("over a transposed operand", "out of step",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = fused %3 : f32[4,4] @ 0x80 {\n"
	  "      (%a0 : f32[4,4])\n"
	  "      %b0 = transpose %a0 {perm = [1,0]} : f32[4,4]\n"
	  "      yield %b0\n"
	  "    }\n" OUT("%4")),
	CASE("a softmax over its operand", NULL,
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = fused %3 : f32[4,4] @ 0x80 {\n"
	  "      (%a0 : f32[4,4])\n"
	  "      %b0 = reduce_max %a0 {axes = [1], keep = true} : f32[4,1]\n"
	  "      %b1 = sub %a0, %b0 : f32[4,4]\n"
	  "      %b2 = exp %b1 : f32[4,4]\n"
	  "      %b3 = sum %b2 {axes = [1], keep = true} : f32[4,1]\n"
	  "      %b4 = div %b2, %b3 : f32[4,4]\n"
	  "      yield %b4\n"
	  "    }\n" OUT("%4")),
	CASE("over an operand that a later pass reads again", "reads it again in a later pass",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4, %5 = fused %3 : f32[4,4] @ 0x80, f32[4,4] @ 0xc0 {\n"
	  "      (%a0 : f32[4,4])\n"
	  "      %b0 = relu %a0 : f32[4,4]\n"
	  "      %b1 = mean %a0 {axes = [1], keep = true} : f32[4,1]\n"
	  "      %b2 = sub %a0, %b1 : f32[4,4]\n"
	  "      yield %b0, %b2\n"
	  "    }\n" OUT("%4") OUT("%5")),
	CASE("a reduction over its operand", "the ranges are not the same",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = fused %3 : f32[4] @ 0x80 {\n"
	  "      (%a0 : f32[4,4])\n"
	  "      %b0 = sum %a0 {axes = [1], keep = false} : f32[4]\n"
	  "      yield %b0\n"
	  "    }\n" OUT("%4")),
	CASE("over elements of another size", "the ranges are not the same",
	  "    %3 = fused %2 : f64[16] @ 0x80 {\n"
	  "      (%a0 : f32[16])\n"
	  "      %b0 = cast %a0 {to = \"f64\"} : f64[16]\n"
	  "      yield %b0\n"
	  "    }\n" OUT("%3")),

	/* views */
	CASE("a view of a row", NULL,
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = slice %3 {axis = 0, start = 2, stop = 4} : f32[2,4] @ 0xa0\n"
	  "    %5 = matmul %4, %3 {ta = false, tb = false} : f32[2,4] @ 0xc0\n" OUT("%5")),
	SPOILED("a view in the wrong place", "the view is at 0xb0, expected 0xa0",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n"
	  "    %4 = slice %3 {axis = 0, start = 2, stop = 4} : f32[2,4] @ 0xa0\n"
	  "    %5 = matmul %4, %3 {ta = false, tb = false} : f32[2,4] @ 0x100\n" OUT("%5"), SPOIL_PLACE, 4),
	CASE("a root overwritten under its view", "reads %3 at 0x80",
	  "    %3 = reshape %2 : f32[4,4] @ 0x80\n" RELU("%4", "%2", "0x80")
	  "    %5 = matmul %3, %3 {ta = false, tb = false} : f32[4,4] @ 0xc0\n" OUT("%5") OUT("%4")),

	/* loops */
	CASE("a carried sum", NULL, LOOP("0x100", ADD("%b0", "%a0", "%2", "0x100") "      yield %b0\n")),
	CASE("a parameter that is not where its operand is", "parameter 0 is at 0x140, expected the place of %3",
	  LOOP("0x140", ADD("%b0", "%a0", "%2", "0x100") "      yield %b0\n")),
	CASE("a yield that is not where the parameter is", "expected the place of %b0",
	  LOOP("0x100", ADD("%b0", "%a0", "%2", "0xc0") "      yield %b0\n")),
	CASE("an outer value lost for the second trip", "reads %2 at 0x80",
	  LOOP("0x100", ADD("%b0", "%a0", "%2", "0x100")
	       RELU("%b1", "%b0", "0x80") OUT("%b1") "      yield %b0\n")),
	CASE("a body value kept from another trip", NULL,
	  LOOP("0x100", RELU("%b0", "%2", "0xc0") ADD("%b1", "%a0", "%b0", "0x100") "      yield %b1\n")),
	CASE("a statistic that each trip updates", NULL,
	  LOOP("0x100", "      fused %1 {\n"
	       "        (%c0 : f32[4])\n"
	       "        %d0 = neg %c0 : f32[4]\n"
	       "        assign %c0, %d0\n"
	       "        yield\n"
	       "      }\n" ADD("%b0", "%a0", "%2", "0x100") "      yield %b0\n")),
	SPOILED("a statistic that is read after its update in the same trip", "reads variable 's' after its assign",
	  "    %3 = fused %1 : f32[4] @ 0xc0 {\n"
	  "      (%a0 : f32[4])\n"
	  "      %b0 = relu %a0 : f32[4]\n"
	  "      yield %b0\n"
	  "    }\n"
	  "    assign %1, %3\n"
	  "    %4 = const {value = 1} : f32[4] @ 0x100\n", SPOIL_READ, 3),

	/* replays */
	CASE("a replay", NULL,
	  RELU("%3", "%2", "0xc0") RELU("%4", "%3", "0x100")
	  "    %5 = replay(%3) fused %2 : f32[16] @ 0xc0 {\n"
	  "      (%a0 : f32[16])\n"
	  "      %b0 = relu %a0 : f32[16]\n"
	  "      yield %b0\n"
	  "    }\n" ADD("%6", "%4", "%5", "0x140") OUT("%6")),
	CASE("a replay of a replay's result", NULL,
	  RELU("%3", "%2", "0xc0") RELU("%4", "%3", "0x100")
	  "    %5 = replay(%3) fused %2 : f32[16] @ 0xc0 {\n"
	  "      (%a0 : f32[16])\n"
	  "      %b0 = relu %a0 : f32[16]\n"
	  "      yield %b0\n"
	  "    }\n"
	  "    %6 = replay(%4) fused %5 : f32[16] @ 0x140 {\n"
	  "      (%a0 : f32[16])\n"
	  "      %b0 = relu %a0 : f32[16]\n"
	  "      yield %b0\n"
	  "    }\n" OUT("%6")),
	CASE("a replay of something else", "is not a replay of node",
	  RELU("%3", "%2", "0xc0") RELU("%4", "%3", "0x100")
	  "    %5 = replay(%3) fused %4 : f32[16] @ 0x140 {\n"
	  "      (%a0 : f32[16])\n"
	  "      %b0 = relu %a0 : f32[16]\n"
	  "      yield %b0\n"
	  "    }\n" OUT("%5")),
	CASE("a replay with another kernel", "expected op 'relu', found 'neg'",
	  RELU("%3", "%2", "0xc0")
	  "    %4 = replay(%3) fused %2 : f32[16] @ 0x100 {\n"
	  "      (%a0 : f32[16])\n"
	  "      %b0 = neg %a0 : f32[16]\n"
	  "      yield %b0\n"
	  "    }\n" OUT("%4")),
	CASE("a replay with another random stream", "attribute 'stream'",
	  "    %3 = dropout_scale {p = 0.5, stream = 1} : f32[16] @ 0xc0\n"
	  "    %4 = replay(%3) dropout_scale {p = 0.5, stream = 2} : f32[16] @ 0x100\n" OUT("%4")),
	CASE("a replay of an update", "cannot run again",
	  "    %3 = fused %0, %2 : f32[16] @ 0xc0 {\n"
	  "      (%a0 : f32[16], %a1 : f32[16])\n"
	  "      %b0 = sub %a0, %a1 : f32[16]\n"
	  "      assign %a0, %b0\n"
	  "      yield %b0\n"
	  "    }\n"
	  "    %4 = replay(%3) fused %1, %2 : f32[16] @ 0x100 {\n"
	  "      (%a0 : f32[4], %a1 : f32[16])\n"
	  "      %b0 = neg %a1 : f32[16]\n"
	  "      yield %b0\n"
	  "    }\n" OUT("%4")),

	/* the arena */
	CASE("not aligned", "expected a multiple of 64", RELU("%3", "%2", "0xc8") OUT("%3")),
	CASE("beyond the arena", "expected at most the arena's 0x400", RELU("%3", "%2", "0x400") OUT("%3")),
};

static void move_last(Block *b, Node *n)
{
	Node *last = b->last;

	ir_move_before(n, last);
	ir_move_before(last, n);
}

static void spoil(Module *m, Spoil how, int at)
{
	Block *b = m->funcs->body;
	Node *n = b->first;

	for (int i = 0; i < at; i++)
		n = n->next;
	if (how == SPOIL_ORDER)
		move_last(b, n);
	if (how == SPOIL_BODY)
		ir_move_before(b->last->body->last->prev, b->last->body->first);
	if (how == SPOIL_PLACE)
		n->res[0]->offset += 16;
	if (how == SPOIL_READ) {
		Value *map[64] = { 0 };
		Builder end = ir_builder(m, b);

		ir_number(m->funcs, NULL);
		ir_clone_node(&end, n, map, 1, 1)->res[0]->offset = 0x140;
	}
	if (how == SPOIL_TWICE)
		b->last->arg[0] = n->res[0];
}

static bool run(const char *text, const Case *c, int64_t budget, char *said, size_t size)
{
	Arena *a = arena_new();
	FILE *out = fmemopen(said, size, "w");
	Diag *d = diag_new(a, out, 0);
	Module *m;
	bool sound = false;

	memset(said, 0, size);
	setbuf(out, NULL);
	m = ir_parse(a, d, "case.ir", text, strlen(text));
	if (m && c)
		spoil(m, c->spoil, c->at);
	if (m)
		sound = check_plan(m, budget, out);
	fclose(out);
	arena_free(a);
	return sound;
}

static int expect(const char *name, const char *fault, const char *text, const Case *c, int64_t budget)
{
	char said[4096];
	bool sound = run(text, c, budget, said, sizeof said);
	int lines = 0;

	for (const char *s = said; *s; s++)
		lines += *s == '\n';
	if (fault ? !sound && lines == 1 && strstr(said, fault) : sound && lines == 0)
		return 0;
	printf("FAIL %s: expected %s%s%s, found %s:\n%s", name, fault ? "one fault with '" : "none", fault ? fault : "",
	       fault ? "'" : "", sound ? "none" : "these", said);
	return 1;
}

int main(void)
{
	int n = 0, failed = 0;
	char text[8192];

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++, n++) {
		snprintf(text, sizeof text, "%s%s%s", head, cases[i].body, tail);
		failed += expect(cases[i].name, cases[i].fault, text, &cases[i], INT64_MAX);
	}
	snprintf(text, sizeof text, "%s%s%s", head, RELU("%3", "%2", "0xc0") OUT("%3"), tail);
	failed += expect("an arena as large as the budget", NULL, text, NULL, 1024);
	failed += expect("an arena beyond the budget", "expected at most the budget's 1023", text, NULL, 1023);
	failed += expect("variables over each other", "variables 'a' and 'b' overlap at 0x40",
			 "module \"t\" batch 1 {\n"
			 "  var \"a\" : f32[17] @ 0x0 param init const(0)\n"
			 "  var \"b\" : f32[16] @ 0x40 param init const(0)\n"
			 "\n"
			 "  func @step batch 1 arena 1024 {\n"
			 "  }\n"
			 "}\n",
			 NULL, INT64_MAX);
	n += 3;
	printf("%d passed, %d failed\n", n - failed, failed);
	return failed > 0;
}
