package main

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/manual"
	"vnic.dev/vnic/internal/testkit"
)

func TestManPagesHaveTheSectionsThatReadersLookFor(t *testing.T) {
	root := newRoot()
	boot, _, err := root.Find([]string{"boot"})
	testkit.OK(t, err)
	const page = ".TH x\n.SH EXAMPLE\n.EX\nx\n.EE\n.SH SEE ALSO\n\\fBvnic(1)\\fP\n"
	got := manual.Finish(boot, page)
	pos := 0
	for _, want := range []string{".SH EXAMPLES\n", ".SH EXIT STATUS\n.TP\n\\fB0\\fP\nThe program ended", "\\fB141\\fP\n",
		".SH ENVIRONMENT\n.TP\n\\fBVNIC_CACHE\\fP\nThe cache, as \\-\\-cache says.\n", "\\fBVNIC_RUNTIME_DIR\\fP",
		".SH FILES\n.TP\n\\fB\\(ti/.cache/vnic\\fP", ".SH SEE ALSO\n\\fBvnic(1)\\fP\n"} {
		i := strings.Index(got[pos:], want)
		if i < 0 {
			t.Fatalf("no %q behind byte %d of\n%s", want, pos, got)
		}
		pos += i
	}
	if strings.Count(got, ".SH SEE ALSO") != 1 || strings.Contains(got, ".SH EXAMPLE\n") {
		t.Error(got)
	}
	if bare := manual.Finish(root, ".TH x\n"); !strings.HasPrefix(bare, ".TH x\n.SH EXIT STATUS\n") {
		t.Error(bare)
	}
}
