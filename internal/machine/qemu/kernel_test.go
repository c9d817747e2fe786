package qemu

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// moduleFile makes a module with a section .modinfo and names of symbols.
func moduleFile(t *testing.T, release string, symbols ...string) []byte {
	t.Helper()
	const headerLen = 64
	info := "vermagic=" + release + " SMP\x00"
	names := "\x00.modinfo\x00.strtab\x00" + strings.Join(symbols, "\x00") + "\x00"
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Ehsize: headerLen, Shentsize: 64, Shnum: 3, Shstrndx: 2, Shoff: uint64(headerLen + len(info) + len(names)),
	}
	var b bytes.Buffer
	for _, v := range []any{
		h, []byte(info), []byte(names), elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: headerLen, Size: uint64(len(info))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(headerLen + len(info)),
			Size: uint64(len(names))},
	} {
		testkit.OK(t, binary.Write(&b, binary.LittleEndian, v))
	}
	return b.Bytes()
}

const release = "6.12.95-test"

// kernelWith makes a kernel with these files, whose names are relative to its directory; its modules are those in lib,
// if there are any.
func kernelWith(t *testing.T, files map[string][]byte) assets.Kernel {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		path := filepath.Join(dir, name)
		testkit.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o600)))
	}
	k := assets.Kernel{Image: filepath.Join(dir, "boot/vmlinuz"), Version: release, Source: assets.SourceGiven}
	if _, err := os.Stat(filepath.Join(dir, "lib")); err == nil {
		k.Modules = filepath.Join(dir, "lib")
	}
	return k
}

func TestKernelIsJudgedBeforeItBoots(t *testing.T) {
	config := []byte("CONFIG_X86_64=y\nCONFIG_GVE=m\nCONFIG_VIRTIO_NET=y\nCONFIG_NET_DEVMEM=y\nCONFIG_" +
		strings.Join(bootOptions, "=y\nCONFIG_") + "=y\n")
	old := moduleFile(t, release)
	ordinary := moduleFile(t, release, "dma_pool_alloc")
	whole := moduleFile(t, release, "dma_pool_alloc", "page_pool_create")
	without := func(option string) []byte {
		return bytes.ReplaceAll(config, []byte("CONFIG_"+option+"=y"), []byte("# CONFIG_"+option+" is not set"))
	}
	for name, c := range map[string]struct {
		nic         string
		files       map[string][]byte
		nicErr, mem string // of fit.Err(false) and fit.Err(true); "": no error
	}{
		"gve": {"gve", map[string][]byte{"lib/gve.ko": whole, "boot/config-" + release: config}, "", ""},
		"gve without page pools": {"gve", map[string][]byte{"lib/gve.ko": ordinary}, "",
			"its gve is too old for device memory TCP"},
		"gve as that of 6.1": {"gve", map[string][]byte{"lib/gve.ko": old}, "its gve is too old: it has neither",
			"its gve is too old: it has neither"},
		"gve of another kernel": {"gve", map[string][]byte{"lib/gve.ko": moduleFile(t, "6.1.0", "dma_pool_alloc")},
			"its is 6.1.0, this is 6.12.95-test", "made for another kernel"},
		"gve cut short": {"gve", map[string][]byte{"lib/gve.ko": whole[:70]}, "cannot be read as a module",
			"cannot be read as a module"},
		"no gve": {"gve", map[string][]byte{"lib/other.ko": whole}, "module gve: not among the kernel's modules",
			"module gve: not among the kernel's modules"},
		"gve built in": {"gve", map[string][]byte{"lib/modules.builtin": []byte("kernel/gve.ko\n")}, "", ""},
		"gve is a module, and none are given": {"gve", map[string][]byte{"boot/config-" + release: config},
			"module gve: not among the kernel's modules, nor built in", "nor built in"},
		"no NET_DEVMEM": {"gve", map[string][]byte{"lib/gve.ko": whole, "lib/config": without("NET_DEVMEM")}, "",
			"it is built without CONFIG_NET_DEVMEM=y"},
		"no initramfs": {"virtio", map[string][]byte{"boot/config-" + release: without("BLK_DEV_INITRD")},
			"it is built without CONFIG_BLK_DEV_INITRD=y", "CONFIG_BLK_DEV_INITRD"},
		"virtio built in, nothing known": {"virtio", nil, "", ""},
		"virtio built in":                {"virtio", map[string][]byte{"boot/config-" + release: config}, "", ""},
		"virtio, for the kernel alone":   {"virtio", map[string][]byte{"lib/virtio_net.ko": old}, "", "uio_pci_generic"},
		"virtio, for our driver alone": {"virtio", map[string][]byte{"lib/uio_pci_generic.ko": old},
			"module virtio_net: not among", ""},
		"a directory for a configuration": {"virtio", map[string][]byte{"boot/config-" + release + "/x": nil}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fit := FitOf(kernelWith(t, c.files), c.nic)
			for want, err := range map[*string]error{&c.nicErr: fit.Err(false), &c.mem: fit.Err(true)} {
				if *want == "" {
					testkit.OK(t, err)
				} else {
					testkit.ErrorSays(t, err, *want)
				}
			}
		})
	}
}

func TestAdviceForAKernelFollowsFromWhatItLacks(t *testing.T) {
	for err, want := range map[error]string{errTooOld: NewerKernel, errOption: "build it with that",
		guestimages.ErrNoModule: "by --modules"} {
		if got := FixKernel(err); !strings.Contains(got, want) {
			t.Errorf("%v: %s", err, got)
		}
	}
}

func TestREADMEAgreesOnWhichKernelsGVENeeds(t *testing.T) {
	readme := string(testkit.Must(os.ReadFile("../../../README.md"))(t))
	for _, says := range []string{"6.12 for an ordinary NIC", "7.2 for device memory TCP",
		"6.12, 7.2 and 7.3 are tested"} {
		if !strings.Contains(NewerKernel, says) || !strings.Contains(readme, says) {
			t.Errorf("%q: README or NewerKernel does not say it", says)
		}
	}
}

func TestDoctorJudgesAKernel(t *testing.T) {
	d := &Report{Facts: []assets.Fact{{Name: "qemu"}, {Name: "nic virtio"}, {Name: "nic gve"}}}
	d.kernel(&assets.Survey{Kernel: kernelWith(t, map[string][]byte{"lib/gve.ko": moduleFile(t, release, "dma_pool_alloc"),
		"lib/other.ko": nil})})
	if d.Facts[0].State != "" {
		t.Errorf("%+v", d.Facts[0])
	}
	if v, g := d.Facts[1], d.Facts[2]; v.State != assets.Lacking || g.State != assets.Worse ||
		!strings.HasPrefix(g.Value, "an ordinary NIC only: kernel "+release+": its gve is too old for device memory TCP") {
		t.Errorf("%+v\n%+v", v, g)
	}
}
