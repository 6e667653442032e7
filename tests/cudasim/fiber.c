/* Switching between the stacks of a block's threads.
 *
 * On x86-64 a switch saves the registers that a call preserves and swaps stack pointers; elsewhere ucontext does the same, slower. A fiber
 * that has ended or is abandoned needs nothing: kernels own no resources. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)

void fiber_swap(void **save, void *to);
__asm__(".text\n"
	".globl fiber_swap\n"
	".hidden fiber_swap\n"
	".type fiber_swap, @function\n"
	"fiber_swap:\n"
	"	pushq %rbp\n	pushq %rbx\n	pushq %r12\n	pushq %r13\n	pushq %r14\n	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbx\n	popq %rbp\n"
	"	ret\n"
	".size fiber_swap, . - fiber_swap\n");

void fiber_make(void **sp, void *stack, size_t bytes, void (*entry)(void))
{
	uintptr_t top = ((uintptr_t)stack + bytes) & ~(uintptr_t)63;
	void **p = (void **)top - 8; /* six registers, where to go, no return address: aligned as behind a call */
	memset(p, 0, 8 * sizeof *p);
	memcpy(&p[6], &entry, sizeof entry);
	*sp = p;
}

void fiber_switch(void **save, void *to)
{
	fiber_swap(save, to);
}

#else

#include <ucontext.h>

void fiber_make(void **sp, void *stack, size_t bytes, void (*entry)(void))
{
	/* The context lies at the low end of its stack. */
	ucontext_t *u = stack;
	getcontext(u);
	u->uc_stack.ss_sp = (char *)stack + 4096;
	u->uc_stack.ss_size = bytes - 4096;
	u->uc_link = NULL;
	makecontext(u, entry, 0);
	*sp = u;
}

void fiber_switch(void **save, void *to)
{
	if (*save == NULL)
		*save = calloc(1, sizeof(ucontext_t));
	swapcontext(*save, to);
}

#endif
