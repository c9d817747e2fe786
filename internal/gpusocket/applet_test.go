package gpusocket

import (
	"bytes"
	"strings"
	"testing"
)

func TestToolSaysWhatItWants(t *testing.T) {
	for _, tt := range []struct {
		args   string
		status int
		says   string
	}{
		{"", 2, "name a network interface"}, {"a b", 2, "name a network interface"}, {"nosuch0", 1, "nosuch0: "},
		{"-h", 0, Path},
	} {
		var out, errs bytes.Buffer
		status := tool(t.Context(), strings.Fields(tt.args), &out, &errs)
		if got := out.String() + errs.String(); status != tt.status || !strings.Contains(got, tt.says) ||
			(status == 0) != (errs.Len() == 0) {
			t.Errorf("%q: %d: %s", tt.args, status, got)
		}
	}
}
