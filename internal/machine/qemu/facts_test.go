package qemu

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: qemu: doctor --report prints the processor, the kernel and the probe's result, and no
// names of people or files.
func TestReportNamesNobody(t *testing.T) {
	t.Setenv("HOME", "/home/somebody")
	t.Setenv(envKVMDevice, filepath.Join(t.TempDir(), "none"))
	r := &Report{Facts: []assets.Fact{
		{Name: "qemu", Value: "11.1.2 (/data/somebody/qemu); not used: ./secret/qemu-system-x86_64: no QEMU"},
		{Name: "kernel", Value: "7.3.4 (given: secret)"},
		{Name: "kvm", Value: "no /dev/kvm: QEMU ended early: qemu: somebody/bios: no file"},
		{Name: "cache", Value: "/srv/secret"}},
		Probe: &Probe{Console: []string{"Linux version 7.3.4 (somebody@secret) (gcc 15)",
			"BIOS 1.17.0 04/01/2014", "x86/fpu: RIP: 0010:native_write_msr+0x4/0x20",
			"could not open 'secret.img' and /dev/shm/somebody/x",
			"last words"}}}
	var b bytes.Buffer
	testkit.OK(t, r.PrintReport(&b))
	for _, want := range []string{"\nkernel: Linux ", "opened: no: ", "vnic's qemu: 11.1.2 ((file)); not used: ",
		"vnic's kernel: 7.3.4 (given)\n", "vnic's kvm: no /dev/kvm: QEMU ended early", "version 7.3.4 (who) (gcc 15)",
		"BIOS 1.17.0 04/01/2014", "x86/fpu: RIP: 0010:native_write_msr+0x4/0x20", "could not open (file)",
		"console: last words"} {
		if !strings.Contains("\n"+b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	host, _ := os.Hostname()
	for _, not := range []string{"somebody", "secret", host} {
		if not != "" && len(not) > 3 && strings.Contains(b.String(), not) {
			t.Errorf("%q in:\n%s", not, b.String())
		}
	}
}

func TestProcessorIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpuinfo")
	testkit.OK(t, os.WriteFile(path, []byte("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\n"+
		"flags\t\t: fpu svm npt sse\n\nprocessor\t: 1\nmodel name\t: another\n"), 0o600))
	testkit.Equal(t, "first", processor(path), "AuthenticAMD AMD EPYC svm npt")
	testkit.Equal(t, "nothing", processor(path+"x"), "")
	dir := t.TempDir()
	testkit.OK(t, os.Mkdir(filepath.Join(dir, "parameters"), 0o700))
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "parameters/npt"), []byte("Y\n"), 0o600))
	testkit.Equal(t, "parameters", parameters(dir), "loaded npt=Y")
	testkit.Equal(t, "no module", parameters(dir+"x"), "")
}
