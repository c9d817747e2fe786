package guestimages

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: vnicgpu: Unless $VNIC_GPU_MODULE names another, guests load the module that was built
// for their kernel, even if that kernel's directory has one too.
func TestModuleThatWasBuiltIsTaken(t *testing.T) {
	t.Setenv(EnvGPUModule, "")
	const release = "7.1.0-some"
	dir := t.TempDir()
	put(t, filepath.Join(dir, "kernel/vnicgpu.ko"), ko(t, "depends=low\x00vermagic=1.0 \x00"))
	built := filepath.Join(t.TempDir(), "built.ko")
	put(t, built, ko(t, "depends=\x00vermagic="+release+" SMP \x00"))
	mods := testkit.Must(resolve(dir, built, []string{GPUModule}))(t)
	if len(mods) != 1 || mods[0].name != GPUModule || mods[0].ext != ".ko" || mods[0].release != release {
		t.Fatalf("%d modules, the first of them %s of %q, and not %q", len(mods), mods[0].name, mods[0].release, release)
	}
	testkit.OK(t, checkRelease(mods, release, dir))
	testkit.ErrorIs(t, checkRelease(mods, release+"-other", dir), ErrOtherKernel)

	_, err := resolve("", "", []string{GPUModule})
	testkit.ErrorIs(t, err, ErrNoGPUModule)
	o := options(t) // ModulesDir has modules
	o.Kernel, o.Modules = release, []string{GPUModule}
	testkit.ErrorIs(t, testkit.Err(Build(t.Context(), o)), ErrNoGPUModule)
	o.GPUModule = built
	testkit.Must(Build(t.Context(), o))(t)
}

func TestSourceOfTheModuleIsEmbedded(t *testing.T) {
	kbuild := testkit.Must(fs.ReadFile(GPUModuleSource(), "Kbuild"))(t)
	_, list, ok := strings.Cut(string(kbuild), "vnicgpu-y :=")
	if !ok || len(strings.Fields(list)) == 0 {
		t.Fatalf("Kbuild names no objects: %s", kbuild)
	}
	for _, o := range strings.Fields(list) {
		testkit.Must(fs.Stat(GPUModuleSource(), strings.TrimSuffix(o, ".o")+".c"))(t)
	}
	for _, h := range []string{"internal.h", "vnicgpu.h"} {
		testkit.Must(fs.Stat(GPUModuleSource(), h))(t)
	}
}

// Invariant: vnicgpu: $VNIC_GPU_MODULE names a user's module; an invalid one, or one of another
// kernel, is refused by name.
func TestModuleOfOnesOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "my.ko")
	t.Setenv(EnvGPUModule, file)
	o := options(t)
	o.Kernel, o.Modules = "6.1.0", []string{GPUModule}
	_, err := Build(t.Context(), o)
	testkit.ErrorIs(t, err, os.ErrNotExist)
	testkit.ErrorSays(t, err, file)
	for name, content := range map[string][]byte{"text": []byte("no ELF"), "empty": nil,
		"broken gzip": []byte("\x1f\x8bxx"), "no .modinfo": []byte("\x7fELF")} {
		put(t, file, content)
		_, err := Build(t.Context(), o)
		testkit.ErrorIs(t, err, ErrBadModule, name)
		testkit.ErrorSays(t, err, file)
	}
	put(t, file, xzOf(t, ko(t, "depends=\x00vermagic=6.2.0 SMP preempt\x00")))
	_, err = Build(t.Context(), o)
	testkit.ErrorIs(t, err, ErrOtherKernel)
	testkit.ErrorSays(t, err, "vnicgpu.ko", "its is 6.2.0, this is 6.1.0", file)
	put(t, file, xzOf(t, ko(t, "depends=\x00vermagic=6.1.0 SMP preempt\x00")))
	testkit.Must(Build(t.Context(), o))(t)
	o.ModulesDir = "" // vnicgpu alone needs no module directory
	testkit.Must(Build(t.Context(), o))(t)
}
