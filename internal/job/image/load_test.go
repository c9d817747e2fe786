package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestImagesAreFoundAgain(t *testing.T) {
	o := options(t)
	testkit.OK(t, Build(t.Context(), o, new(strings.Builder)))
	f := testkit.Must(Load(o.Dir))(t)
	testkit.Equal(t, "model", f.NIC, o.Guest.NIC)
	testkit.Equal(t, "append", f.Append+"\n", read(t, filepath.Join(o.Dir, "append")))
	const clock = " tsc=unstable "
	if kvm := strings.Join(f.Args(true), " "); strings.Contains(kvm, clock) {
		t.Errorf("by KVM: %s", kvm)
	}
	old := f
	old.Append = strings.Replace(f.Append+" ", clock, " ", 1) // as in an older vnic's image
	if by := strings.Join(old.Args(false), " "); !strings.Contains(f.Append+" ", clock) || !strings.Contains(by, clock) {
		t.Errorf("%q, by TCG: %s", old.Append, by)
	}
	args := strings.Join(f.Args(false), " ")
	for _, want := range []string{"-kernel " + o.Dir + "/kernel -initrd " + o.Dir + "/initrd -append console=ttyS0 ",
		" -nographic "} {
		if !strings.Contains(args, want) {
			t.Errorf("%s, without %q", args, want)
		}
	}
	for _, tt := range []struct {
		change func(dir string) error
		says   string
	}{
		{func(dir string) error { return os.Remove(dir + "/initrd") }, "it has no file initrd"},
		{func(dir string) error { return errors.Join(os.Remove(dir+"/kernel"), os.Mkdir(dir+"/kernel", 0o755)) },
			"it has no file kernel"},
		{func(dir string) error { return os.Remove(dir + "/append") }, "it has no file append"},
		{func(dir string) error { return os.Remove(dir + "/README") }, "it has no file README"},
		{func(dir string) error { return os.WriteFile(dir+"/README", []byte("# Mine\n"), 0o600) }, "what is there is none"},
		{func(dir string) error { return os.WriteFile(dir+"/append", []byte("a\nb"), 0o600) }, "what is there is none"},
		{os.RemoveAll, "it has no file kernel"},
	} {
		dir := filepath.Join(t.TempDir(), "copy")
		testkit.OK(t, os.CopyFS(dir, os.DirFS(o.Dir)))
		testkit.OK(t, tt.change(dir))
		_, err := Load(dir)
		testkit.ErrorIs(t, err, ErrNoImage)
		testkit.ErrorSays(t, err, dir, "'vnic image build' makes one", tt.says)
	}
	testkit.OK(t, errors.Join(os.Remove(o.Dir+"/README"), os.Mkdir(o.Dir+"/README", 0o755)))
	_, err := Load(o.Dir)
	testkit.ErrorIs(t, err, unix.EISDIR) // something is there: "make one" would be wrong
	testkit.ErrorSays(t, err, o.Dir+"/README")
}

// Load refuses an image with another protocol version, also one that does not contain its version.
func TestImagesOfAnotherVnicAreRefused(t *testing.T) {
	o := options(t)
	testkit.OK(t, Build(t.Context(), o, new(strings.Builder)))
	testkit.OK(t, testkit.Err(Load(o.Dir)))
	ours := read(t, o.Dir+"/README")
	built := func(line string) string { return ours[:strings.LastIndex(ours, "Built by")] + line + "\n" }
	for readme, want := range map[string]string{
		read(t, "testdata/README-780d5150"):         "is of an older vnic, which does not say its version",
		built("Built by vnic v1.0, protocol 1."):    "is of vnic v1.0 (protocol 1)",
		built("Built by vnic v9.0 1f, protocol 3."): "is of vnic v9.0 1f (protocol 3)",
	} {
		testkit.OK(t, os.WriteFile(o.Dir+"/README", []byte(readme), 0o600))
		f, err := Load(o.Dir)
		testkit.ErrorSays(t, err, "the image in "+o.Dir+" "+want+", this is vnic ", "(protocol 2): build it again")
		testkit.Equal(t, "model", f.NIC, o.Guest.NIC)
	}
}
