package guestimages

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// locked is the release of the kernel that vnic fetches.
func locked(t *testing.T) string {
	t.Helper()
	const file = "../assets/versions.lock"
	var lock any
	testkit.OK(t, json.Unmarshal(testkit.Must(os.ReadFile(file))(t), &lock))
	release := ""
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			if name, _ := v["name"].(string); strings.HasPrefix(name, "linux-binary-") {
				release = strings.TrimPrefix(name, "linux-binary-")
			}
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(lock)
	if release == "" {
		t.Fatalf("%s names no kernel", file)
	}
	return release
}

// carries skips a test where nothing has built the module: only make does.
func carries(t *testing.T, release string) {
	t.Helper()
	t.Setenv(EnvGPUModule, "")
	if carried() == "" {
		t.Skip("no vnicgpu.ko has been built: make build")
	}
	if !strings.Contains(carried(), release) {
		t.Fatalf("the kernel is %s%s", release, carried())
	}
}

// Invariant: vnicgpu: vnic carries the module of the kernel that it fetches, and takes it whatever that kernel's
// directory has.
func TestModuleOfTheLockedKernelIsCarried(t *testing.T) {
	release := locked(t)
	carries(t, release)
	dir := t.TempDir()
	put(t, filepath.Join(dir, "kernel/vnicgpu.ko"), ko(t, "depends=low\x00vermagic=1.0 \x00"))
	mods := testkit.Must(resolve(dir, release, []string{GPUModule}))(t)
	if len(mods) != 1 || mods[0].name != GPUModule || mods[0].ext != ".ko" || mods[0].release != release {
		t.Fatalf("%d modules, the first of them %s of %q, and not %q", len(mods), mods[0].name, mods[0].release, release)
	}
	m := mods[0]
	testkit.Equal(t, "what it is", string(m.content[:4]), "\x7fELF")
	testkit.OK(t, checkRelease(mods, release, dir))
	testkit.ErrorIs(t, checkRelease(mods, release+"-other", dir), ErrOtherKernel)
}

// Invariant: vnicgpu: For a kernel that vnic carries no module for, the error lists those that it does, and how to
// build one.
func TestKernelWithoutAModule(t *testing.T) {
	release := locked(t)
	carries(t, release)
	_, err := resolve("", "1.2.3-nobody", []string{GPUModule})
	testkit.ErrorIs(t, err, ErrNoGPUModule)
	testkit.ErrorSays(t, err, "vnicgpu.ko", "make -C HEADERS", "$"+EnvGPUModule, "it carries those for "+release)
	o := options(t) // with modules of the kernel's own
	o.Kernel, o.Modules = "1.2.3-nobody", []string{GPUModule}
	testkit.ErrorIs(t, testkit.Err(Build(t.Context(), o)), ErrNoGPUModule)
}

// Invariant: vnicgpu: $VNIC_GPU_MODULE names a module of one's own; one that is none, or another kernel's, is refused
// with its name.
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
	o.ModulesDir = "" // as with a kernel that has all else built in
	testkit.Must(Build(t.Context(), o))(t)
}
