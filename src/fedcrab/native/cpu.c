/* Whether this processor can run the other files, which were compiled for one level; this one runs everywhere. */

/* The hash of the files that the library was compiled from. */
const char *sources(void) { return SOURCES; }

int supported(void) {
#if defined LEVEL_avx512
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
#elif defined LEVEL_avx2
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
    return 1;
#endif
}
