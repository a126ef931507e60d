/* Loads a library that is named by its first argument as a module, out of sight of all others, and is what its main() is. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *module = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*start)(void) = module ? (int (*)(void))dlsym(module, "main") : NULL;

	if (!start) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return start();
}
