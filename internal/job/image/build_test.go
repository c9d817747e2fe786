package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"

	"vnic.dev/vnic/internal/job/boot"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
)

// options are for an image of a kernel without modules.
func options(t *testing.T) BuildOptions {
	t.Helper()
	dir := t.TempDir()
	kernel := make([]byte, 0x300) // the header of a bzImage: Linux Documentation/arch/x86/boot.rst
	copy(kernel[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(kernel[0x20e:], 0x10)
	copy(kernel[0x210:], "9.9.9-none (nobody) #1\x00")
	put := func(name string, mode os.FileMode, b []byte) string {
		path := filepath.Join(dir, name)
		testkit.OK(t, os.WriteFile(path, b, mode))
		return path
	}
	for _, e := range []string{assets.EnvKernel, assets.EnvModules, assets.EnvQEMU, "LD_LIBRARY_PATH"} {
		t.Setenv(e, "")
	}
	return BuildOptions{Dir: filepath.Join(dir, "out"), Guest: boot.Options{NIC: lab.Virtio, Guests: 1, CPUs: 1,

		NICOptions: lab.NICOptions{MTU: 1500}, Memory: 512 << 20,
		Copies:  []string{put("data", 0o644, []byte("some data")) + ":/data"},
		Command: []string{"/bin/cat", "/data"}, Env: []string{"A=b"}, Append: "more",
		Common: session.Common{Log: slog.New(slog.DiscardHandler), Note: func(string, ...any) {},
			Fetch: assets.Options{CacheDir: filepath.Join(dir, "cache"), Offline: true, Kernel: put("bzImage", 0o644, kernel)}}}}
}

// files returns the content, or the link's target, by the name of each file in an initrd's archives. Later files
// replace earlier ones, as in the kernel.
func files(t *testing.T, initrd []byte) map[string]string {
	t.Helper()
	all := map[string]string{}
	for len(initrd) > 0 {
		from := bytes.NewReader(initrd)
		for r := cpio.NewReader(from); ; {
			f, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			testkit.OK(t, err)
			all[f.Name] = string(testkit.Must(io.ReadAll(r))(t)) + f.Linkname
		}
		initrd = bytes.TrimLeft(initrd[len(initrd)-from.Len():], "\x00")
	}
	return all
}

// Invariant: vnic image: The same flags give the same bytes.
func TestImageIsWholeAndReproducible(t *testing.T) {
	o := options(t)
	var output bytes.Buffer
	testkit.OK(t, Build(t.Context(), o, &output))
	testkit.Equal(t, "made", left(t, o.Dir), "README append initrd kernel")
	if !strings.Contains(output.String(), "-initrd "+o.Dir+"/initrd") ||
		strings.Contains(read(t, o.Dir+"/README"), o.Dir) {
		t.Errorf("said %s\nand %s", output.String(), read(t, o.Dir+"/README"))
	}
	if got := read(t, o.Dir+"/append"); !strings.HasPrefix(got, "console=ttyS0 ") || !strings.HasSuffix(got, " more\n") ||
		strings.Contains(got, "nokaslr") {
		t.Errorf("append %q", got)
	}
	initrd := read(t, o.Dir+"/initrd")
	all := files(t, []byte(initrd))
	if all["data"] != "some data" || !strings.HasPrefix(all["init"], "\x7fELF") || all["bin/devmem"] != "/init" {
		t.Errorf("data %q, %d bytes of init, devmem %q", all["data"], len(all["init"]), all["bin/devmem"])
	}
	if conf := all["vnic/config.json"]; !strings.Contains(conf, `"/data"`) || !strings.Contains(conf, `"A=b"`) ||
		!strings.Contains(conf, `"virtio_net"`) {
		t.Error(conf)
	}
	before := o.Dir
	o.Dir += "2"
	t.Setenv("TERM", "another")
	testkit.OK(t, Build(t.Context(), o, io.Discard))
	for _, name := range strings.Fields(left(t, o.Dir)) {
		if read(t, filepath.Join(o.Dir, name)) != read(t, filepath.Join(before, name)) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestGPUOfAGVENICIsANode(t *testing.T) {
	o := options(t)
	o.Guest.NIC = lab.GVE
	testkit.OK(t, Build(t.Context(), o, io.Discard))
	if got := read(t, o.Dir+"/append"); !strings.Contains(got, " nokaslr tsc=unstable udmabuf.") {
		t.Errorf("append %q", got)
	}
	if conf := files(t, []byte(read(t, o.Dir+"/initrd")))["vnic/config.json"]; !strings.Contains(conf, `"node0": true`) ||
		strings.Contains(conf, "own_driver") {
		t.Error(conf)
	}
}

func TestMistakesLeaveNothing(t *testing.T) {
	for want, change := range map[string]func(*BuildOptions){
		"no such file or directory: make its directory": func(o *BuildOptions) { o.Dir += "/no/where" },
		"it is not a directory":                         func(o *BuildOptions) { o.Dir = o.Guest.Fetch.Kernel },
		"no such file on this machine": func(o *BuildOptions) {
			o.Guest.Command = []string{"/no/such/program"}
		},
		"not a bzImage": func(o *BuildOptions) {
			o.Guest.Fetch.Kernel = strings.TrimSuffix(o.Guest.Copies[0], ":/data")
		},
	} {
		o := options(t)
		change(&o)
		testkit.ErrorSays(t, Build(t.Context(), o, io.Discard), want)
		if got := strings.Replace(left(t, filepath.Dir(o.Guest.Fetch.CacheDir)), " cache", "", 1); got != "bzImage data" {
			t.Errorf("%s: left %s", want, got)
		}
	}
	o := options(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.ErrorIs(t, Build(ctx, o, io.Discard), context.Canceled)
	if _, err := os.Stat(o.Dir); err == nil {
		t.Error("cancelled, and made")
	}
}
