package guestimages

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/u-root/u-root/pkg/cpio"

	"vnic.dev/vnic/internal/testkit"
)

// An image that is to have the userland has its commands, and a shell; another has none of it.
func TestUserlandIsInTheImageThatWantsIt(t *testing.T) {
	names := Userland()
	if names == nil {
		t.Skip("this build carries no userland: make build")
	}
	testkit.Equal(t, "in order", slices.IsSorted(names), true)
	for _, n := range strings.Fields("cat dmesg insmod ip ls lsmod mount netcat ping ps sh wget") {
		if !HasCommand(n) {
			t.Errorf("it has no %s", n)
		}
	}
	if HasCommand("no-such-command") || HasCommand("") {
		t.Error("it has what there is not")
	}
	program := t.TempDir() + "/program"
	put(t, program, []byte("\x7fELF"))
	var sizes []int64
	for _, wanted := range []bool{false, true} {
		img, err := Build(t.Context(), Options{CacheDir: t.TempDir(), Program: program, Userland: wanted})
		testkit.OK(t, err)
		sizes = append(sizes, img.Size)
		recs := map[string]string{}
		r := cpio.Newc.Reader(bytes.NewReader(testkit.Must(os.ReadFile(img.Path))(t)))
		for {
			rec, err := r.ReadRecord()
			if err == io.EOF {
				break
			}
			testkit.OK(t, err)
			if rec.Mode&cpio.S_IFLNK == cpio.S_IFLNK {
				recs[rec.Name] = string(testkit.Must(io.ReadAll(io.NewSectionReader(rec, 0, int64(rec.FileSize))))(t))
			}
		}
		want := map[string]string{}
		if wanted {
			want["bin/sh"] = "/bbin/sh"
			for _, n := range names {
				want["bbin/"+n] = "bb"
			}
		}
		if diff := cmp.Diff(want, recs); diff != "" {
			t.Error(diff)
		}
	}
	if grown := sizes[1] - sizes[0]; grown < 1<<20 || grown > 20<<20 {
		t.Errorf("it takes %d MB of a guest's memory", grown>>20)
	}
}
