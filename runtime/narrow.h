/* Arrays of 16-bit floating-point numbers to f32 and back, as generated kernels load and store them. */
#ifndef DLC_RUNTIME_NARROW_H
#define DLC_RUNTIME_NARROW_H

#include "plan.h"

/* n numbers of type t (PD_F16, PD_BF16) from one place to another that does not overlap it: widened, which is exact, or
 * rounded to nearest even; infinities and NaNs stay what they are. By OpenMP's threads, of which results do not depend. */
void narrow_widen(PlanDType t, const uint16_t *from, float *to, int64_t n);
void narrow_round(PlanDType t, const float *from, uint16_t *to, int64_t n);

#endif
