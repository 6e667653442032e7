/* What cuda.c, cuda_rows.c and cuda_columns.c share: the frame of a launch, and the text that evaluates
 * several neighbouring elements in one thread.
 *
 * A thread takes `width` elements of the last dimension from b on. What lies side by side is moved in
 * words of up to 16 bytes through x<i>[] (loads) and y<s>[] (stores); an unrolled loop over e computes
 * element j = b + e. */
#ifndef DLC_CODEGEN_CUDA_PARTS_H
#define DLC_CODEGEN_CUDA_PARTS_H

#include "cuda.h"
#include "print.h"

enum { CUDA_MAX_LAUNCHES = 40, CUDA_BLOCK = 256, CUDA_WARP = 32 };

typedef struct CudaPrinter {
	Printer p;
	const char *itype; /* of indices: "int" where they fit, else "int64_t" */
	int width;
	int *stage;         /* loads that go through x<stage>[], or -1: through their own, or with others of which one at most is there */
	unsigned *want;     /* by instruction inside of the row: phases in which it is evaluated or read */
	bool *keep;         /* evaluated in its first phase, kept in q<i>[] for the others */
	const char *lane;   /* index into q<i>[] */
	bool running;       /* units run over the ends of rows: b counts from the first row's start, and words lie at b */
	int members;        /* a group's (KernelPrinter.group); else 1 */
	const char *turn;   /* where a team has rows one after another: which half of a shared array this one uses, as "(row & 1) * 3 + " */
	int64_t counters;   /* of blocks that have arrived ($_arrived[], dl_last_block), which begin and end at 0 */
	PlanLaunch launch[CUDA_MAX_LAUNCHES];
	int nlaunch;
} CudaPrinter;

/* Opens the next launch's function and declares its operands; cuda_close ends it. */
void cuda_open(CudaPrinter *c, int64_t gx, int64_t gy, int block);
void cuda_close(CudaPrinter *c);

/* Whether `width` elements from a multiple of it on lie side by side, in one word: of a load (an operand
 * of the node) or of a store (its target). */
bool cuda_side_by_side(const CudaPrinter *c, const LoopIndex *x, Value *v, int width);
/* The same where rows follow each other without a gap and units begin at multiples of the width from the first row's
 * start, whatever row they are in. */
bool cuda_side_by_side_running(const CudaPrinter *c, const LoopIndex *x, Value *v, int width);
/* Sets `width` and `running`, and what is staged, each load by itself. */
void cuda_set_width(CudaPrinter *c, int width, bool running);
/* Sets `want` for what is kept, and which loads share registers. */
void cuda_set_wants(CudaPrinter *c);
/* Instructions of level 0 (`top`), and those of a row that are ready in a phase. */
void cuda_print_top(CudaPrinter *c);
void cuda_print_row_level(CudaPrinter *c, int phase);
/* One unit in a phase: loads, the loop over e (in it `accumulate`, unless NULL), stores. b is declared, and the indices of
 * all dimensions but the last; where not even the last dimension is a multiple of the width, `decode` declares
 * all of them for an element. Where some elements of a unit may not exist: `whole` says that all do, `inside` that element e
 * does; else both are NULL. */
typedef struct CudaUnit {
	int phase;
	const char *whole, *inside;
	void (*decode)(CudaPrinter *c);
	void (*accumulate)(CudaPrinter *c, int phase);
} CudaUnit;
void cuda_print_unit(CudaPrinter *c, const CudaUnit *u);
/* Stores once a row. */
void cuda_print_row_stores(CudaPrinter *c);

void cuda_print_rows(CudaPrinter *c);
void cuda_print_columns(CudaPrinter *c);
/* Of a kernel with sums over rows: cuda_sums_beside_rows (cuda.h) has said that it can be. */
int64_t cuda_rows_workspace(const Loop *l);
int64_t cuda_columns_workspace(const Loop *l);

/* Bytes of partial results of one unit of work: 8 for each reduction, 16 for an argmax. */
int64_t cuda_partial_bytes(const Loop *l);
/* Declares p<i>, the partial results of each reduction, `count` of them, and q<i> for an argmax's places. */
void cuda_print_partials(CudaPrinter *c, int64_t count);

#endif
