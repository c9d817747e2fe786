package assets

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"vnic.dev/vnic/internal/testkit"
)

// elfKernel makes an ELF file with two notes, one of them Xen's with the given type.
func elfKernel(note uint32) []byte {
	b := make([]byte, 64+56)
	copy(b, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(b[16:], 2)  // executable
	le.PutUint16(b[18:], 62) // x86-64
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[32:], 64) // program headers
	for i, n := range []uint16{64, 56, 1, 64, 0, 0} {
		le.PutUint16(b[52+2*i:], n)
	}
	var notes []byte
	for _, n := range []struct {
		name string
		kind uint32
	}{{"Linux\x00\x00\x00", 1}, {"Xen\x00", note}} {
		notes = le.AppendUint32(notes, uint32(len(strings.TrimRight(n.name, "\x00"))+1))
		notes = le.AppendUint32(le.AppendUint32(notes, 4), n.kind)
		notes = append(append(notes, n.name...), 1, 2, 3, 4)
	}
	le.PutUint32(b[64:], 4) // PT_NOTE
	le.PutUint64(b[64+8:], uint64(len(b)))
	le.PutUint64(b[64+32:], uint64(len(notes)))
	return append(b, notes...)
}

// packedIn makes a bzImage of a compressed kernel. size is the unpacked size that it claims.
func packedIn(packed []byte, size int) []byte {
	b := make([]byte, 2*512+16)
	b[0x1f1] = 1
	copy(b[0x202:], "HdrS\x0f\x02")
	binary.LittleEndian.PutUint32(b[0x248:], 16)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(packed)+4))
	return binary.LittleEndian.AppendUint32(append(b, packed...), uint32(size))
}

func zstdOf(t testing.TB, b []byte) []byte {
	w := testkit.Must(zstd.NewWriter(nil))(t)
	return w.EncodeAll(b, nil)
}

func xzOf(t *testing.T, b []byte) []byte {
	var packed bytes.Buffer
	w := testkit.Must(xz.NewWriter(&packed))(t)
	testkit.Must(w.Write(b))(t)
	testkit.OK(t, w.Close())
	return packed.Bytes()
}

func unpacked(image []byte) ([]byte, error) {
	var out bytes.Buffer
	err := vmlinux(&out, image)
	return out.Bytes(), err
}

func TestKernelIsUnpacked(t *testing.T) {
	want := elfKernel(xenPhys32Entry)
	for name, packed := range map[string][]byte{"zstd": zstdOf(t, want), "xz": xzOf(t, want)} {
		got, err := unpacked(packedIn(packed, len(want)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(want), err)
		}
	}
	var gz bytes.Buffer // its last word is the size
	w := gzip.NewWriter(&gz)
	testkit.Must(w.Write(want))(t)
	testkit.OK(t, w.Close())
	image := filepath.Join(t.TempDir(), "vmlinuz")
	testkit.OK(t, os.WriteFile(image, packedIn(gz.Bytes()[:gz.Len()-4], len(want)), 0o600))
	if got, err := (&Kernel{Image: image}).Unpacked(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("gzip: %d bytes of %d, %v", len(got), len(want), err)
	}
}

func TestKernelThatCannotBeUnpackedIsSaid(t *testing.T) {
	kernel := elfKernel(xenPhys32Entry)
	packed := zstdOf(t, kernel)
	whole := packedIn(packed, len(kernel))
	old := bytes.Clone(whole)
	old[0x206] = 7
	for want, image := range map[string][]byte{
		"not a bzImage of Linux 2.6.26": old,
		"not a bzImage":                 whole[:0x24f],
		"lies outside":                  whole[:len(whole)-1],
		"a kernel of":                   packedIn(packed, maxKernel+1),
		"does not unpack":               packedIn(packed, len(kernel)+1),
		"packed in an unknown way":      packedIn([]byte("\x02\x21, lz4"), 100),
		"without CONFIG_PVH":            packedIn(zstdOf(t, elfKernel(17)), len(kernel)),
		"bad magic number":              packedIn(zstdOf(t, make([]byte, 100)), 100),
	} {
		b, err := unpacked(image)
		if err == nil {
			err = bootsByPVH(bytes.NewReader(b))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// If a kernel cannot be unpacked, or lacks PVH, its tree has no ELF file to boot.
func TestTreeHasItsKernelUnpacked(t *testing.T) {
	kernel := elfKernel(xenPhys32Entry)
	for _, c := range []struct {
		image []byte
		elf   string
	}{
		{packedIn(zstdOf(t, kernel), len(kernel)), vmlinuxName},
		{packedIn([]byte("\x02\x21, lz4"), 100), ""},
		{packedIn(zstdOf(t, kernel), len(kernel)+1), ""},      // it claims a byte too many
		{packedIn(zstdOf(t, elfKernel(17)), len(kernel)), ""}, // without PVH
	} {
		root := t.TempDir()
		dir := filepath.Join(root, "usr/lib/modules/6.1")
		testkit.OK(t, os.MkdirAll(dir, 0o755))
		write(t, filepath.Join(dir, "vmlinuz"), string(c.image))
		testkit.OK(t, unpackKernel(root))
		k := testkit.Must(kernelOf(root))(t)
		if c.elf != "" {
			c.elf = filepath.Join(root, c.elf)
		}
		if k.ELF != c.elf {
			t.Errorf("%q, want %q", k.ELF, c.elf)
		}
		if st := testkit.Must(os.Stat(filepath.Join(root, vmlinuxName)))(t); c.elf == "" && st.Size() > 0 {
			t.Errorf("%d bytes of a kernel that cannot be booted so", st.Size())
		}
	}
	if err := unpackKernel(t.TempDir()); err == nil {
		t.Error("a tree without a kernel")
	}
}

func FuzzVmlinux(f *testing.F) {
	kernel := elfKernel(xenPhys32Entry)
	f.Add(packedIn(zstdOf(f, kernel), len(kernel)))
	f.Fuzz(func(t *testing.T, image []byte) {
		b, err := unpacked(image)
		if err != nil {
			return
		}
		if len(b) > maxKernel {
			t.Errorf("%d bytes are unpacked", len(b))
		}
		_ = bootsByPVH(bytes.NewReader(b)) // must end
	})
}
