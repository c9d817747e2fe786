package version

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestAnotherProtocolIsRefusedInOneLine(t *testing.T) {
	ours := Hello{2, "v2.0"}
	for theirs, want := range map[Hello]string{
		{2, "v1.9"}:            "",
		{3, "v3.0"}:            "it is of vnic v3.0 (protocol 3), this is vnic v2.0 (protocol 2): build it",
		{1, ""}:                "it is of an older vnic (protocol 1), this is vnic v2.0 (protocol 2): build it",
		{}:                     "it is of an older vnic, which does not say its version, this is vnic v2.0 (protocol 2): build it",
		{1, "\x1b[2J\xff\nv1"}: `it is of vnic \x1b[2J\xff\nv1 (protocol 1), this is vnic v2.0 (protocol 2): build it`,
		{-1, strings.Repeat("x", 1<<20)}: "it is of vnic " + strings.Repeat("x", 80) +
			" (protocol -1), this is vnic v2.0 (protocol 2): build it",
	} {
		if err := ours.Check(theirs, "it", "build it"); want != "" {
			testkit.Equal(t, "refusal", err.Error(), want)
		} else {
			testkit.OK(t, err)
		}
	}
}
