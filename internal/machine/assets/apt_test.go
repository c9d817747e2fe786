package assets

import (
	"context"
	"errors"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/testkit"
)

func TestParsePrintedURIs(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	list, err := parseURIs(`Reading package lists...
After this operation, 193 MB of additional disk space will be used.
'http://m.example/pool/q/qemu-system-x86_11.1.2%2bds-3_amd64.deb' ` +
		`qemu-system-x86_1%3a11.1.2+ds-3_amd64.deb 10769532 SHA256:` + sum + `
'http://m.example/pool/s/seabios_1.17.0-1_all.deb' seabios_1.17.0-1_all.deb 158720 SHA256:` + sum + "\n")
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	want := Package{Name: "qemu-system-x86", Version: "1:11.1.2+ds-3", Size: 10769532, SHA256: sum,
		file: "qemu-system-x86_1%3a11.1.2+ds-3_amd64.deb"}
	if list[0] != want {
		t.Errorf("%+v", list[0])
	}
	for name, line := range map[string]string{
		"other hash": "'u' a_1_all.deb 1 MD5Sum:" + sum,
		"short hash": "'u' a_1_all.deb 1 SHA256:abcd",
		"size":       "'u' a_1_all.deb x SHA256:" + sum,
		"huge":       "'u' a_1_all.deb 9223372036854775808 SHA256:" + sum,
		"escape":     "'u' a_1%zz_all.deb 1 SHA256:" + sum,
		"name":       "'u' a.deb 1 SHA256:" + sum,
		"path":       "'u' ../a_1_all.deb 1 SHA256:" + sum,
		"fields":     "'u' a_1_all.deb 1",
	} {
		if _, err := parseURIs(line); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestKernelPackagesArePicked(t *testing.T) {
	names := func(list []Package) string {
		var s []string
		for _, p := range list {
			s = append(s, p.Name)
		}
		return strings.Join(s, " ")
	}
	closure := func(text string) (list []Package) {
		for n := range strings.FieldsSeq(text) {
			list = append(list, Package{Name: n})
		}
		return list
	}
	for in, want := range map[string]string{
		"linux-base linux-modules-7.2.12+deb14-cloud-amd64 linux-base-7.2.12+deb14-cloud-amd64 " +
			"linux-binary-7.2.12+deb14-cloud-amd64 linux-image-7.2.12+deb14-cloud-amd64 linux-image-cloud-amd64": "" +
			"linux-binary-7.2.12+deb14-cloud-amd64 linux-modules-7.2.12+deb14-cloud-amd64",
		"kmod linux-base linux-image-6.12.107-cloud-amd64 linux-image-cloud-amd64": "linux-image-6.12.107-cloud-amd64",
		"kmod": "",
	} {
		if got := names(pickKernel(closure(in))); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

func TestAptErrorsSayWhatToDo(t *testing.T) {
	for words, want := range map[string]error{
		"E: Failed to fetch http://m/x  Temporary failure resolving 'm'":                                      ErrNoNetwork,
		"Could not connect to m:80 (10.0.0.1), connection timed out":                                          ErrNoNetwork,
		"The following signatures couldn't be verified because the public key is not available: NO_PUBKEY 1":  ErrNoKeyring,
		"E: The repository 'http://m s InRelease' is not signed.":                                             ErrNoKeyring,
		"tar: ./x: Cannot write: No space left on device":                                                     ErrNoSpace,
		"E: Sub-process http received signal 25.":                                                             ErrNoSpace,
		"E: Release file for http://m is expired (invalid since 14d)":                                         errExpired,
		"E: Failed to fetch http://m/x/Packages  File has unexpected size (1 != 2). Mirror sync in progress?": errTorn,
		"E: Failed to fetch http://m/pool/x.deb  Hash Sum mismatch":                                           errTorn,
	} {
		err := aptError("suite s", &proc.ToolError{Name: "apt-get", Err: errors.New("exit status 100"), Stderr: words})
		testkit.ErrorIs(t, err, want, "%s", words)
	}
	testkit.ErrorIs(t, aptError("x", context.Canceled), context.Canceled, "a context's error")
	unknown := &proc.ToolError{Name: "apt-get", Err: errors.New("exit status 100"),
		Stderr: "Notice: x\nE: words of next year\n"}
	testkit.Equal(t, "unknown words", aptError("suite s", unknown).Error(),
		"suite s: apt-get: exit status 100: Notice: x; E: words of next year")
}

func TestAptKeepsTheMachinesProxyOnly(t *testing.T) {
	for line, want := range map[string]bool{
		`Acquire::http::Proxy "http://p:3128";`:           true,
		`Acquire::https::Proxy::m.example "DIRECT";`:      true,
		`Acquire::Retries "3";`:                           true,
		`Acquire::Check-Valid-Until "false";`:             true,
		`Acquire::AllowInsecureRepositories "1";`:         false,
		`Acquire::Languages "none";`:                      false,
		`APT::Update::Post-Invoke:: "rm -f /var/cache";`:  false,
		`Acquire::IndexTargets::deb::Packages::MetaKey x`: false,
	} {
		if aptKept.MatchString(line) != want {
			t.Errorf("%s: want %v", line, want)
		}
	}
}

// A program that apt.command runs makes its temporary files below the apt's directory.
func TestAptsTemporaryFilesGoWithItsState(t *testing.T) {
	needsApt(t)
	dir := t.TempDir()
	a := testkit.Must(newApt(t.Context(), dir, "sid", archive{}))(t)
	file := testkit.Must(a.command(dir, nil).Run(t.Context(), "mktemp"))(t)
	if !strings.HasPrefix(string(file), dir+"/") {
		t.Errorf("a temporary file is %s, and not in %s", file, dir)
	}
}
