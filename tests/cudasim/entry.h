// What stands in front of a kernel file once its macros are expanded and rewrite.c has been over it.
//
// `__shared__ T x;` has become `typedef T dl_sim_t_x; DL_SIM_SHARED(x)`: a shared variable has space around it, no more alignment than it
// asks for, and is not known to the optimiser, which would leave out checks; dl_sim_n_x says where in dl_sim_s_x it lies. Each `extern "C"
// __global__` function has a DL_SIM_ENTRY at the end.
#define __global__
#define __launch_bounds__(...)
#define DL_SIM_SHARED(x) \
	static dl_sim_padded<dl_sim_t_##x, alignof(dl_sim_t_##x)> dl_sim_s_##x; \
	__attribute__((used)) static const unsigned long dl_sim_n_##x[2] = {alignof(dl_sim_t_##x), sizeof(dl_sim_t_##x)}; \
	auto &x = dl_sim_opaque(dl_sim_s_##x.v);
#define DL_SIM_ENTRY(name, bounds) \
	extern "C" __attribute__((visibility("default"), used)) const dl_sim_kernel_t dl_sim_kernel_##name; \
	const dl_sim_kernel_t dl_sim_kernel_##name = {&decltype(dl_sim_entry_of(&name))::template call<&name>, \
		decltype(dl_sim_entry_of(&name))::sizes, sizeof decltype(dl_sim_entry_of(&name))::sizes / 4 - 1, (bounds)};
#define DL_SIM_MODULE(arch) \
	extern "C" { __attribute__((aligned(128))) __attribute__((visibility("hidden"))) unsigned char dl_sim_dynamic_store[16 + 227 * 1024 + 64]; } \
	__asm__(".globl dl_sim_dynamic\n.hidden dl_sim_dynamic\n.set dl_sim_dynamic, dl_sim_dynamic_store + 16\n"); \
	extern "C" __attribute__((visibility("default"), used)) const dl_sim_module_t dl_sim_module; \
	const dl_sim_module_t dl_sim_module = {1, arch, &dl_sim_now, dl_sim_dynamic_store + 16};
