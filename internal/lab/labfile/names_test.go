package labfile

import (
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Names of guests, NICs, sockets, GPUs and uplinks are checked.
//
// Invariant: labfile: The gateway accepts each name that a lab file may have.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 31)
	for name, good := range map[string]bool{"a": true, "a-b": true, "a--b": true, "a1": true, "a-1": true, long: true,
		"xn--a": true, "a-": false, "a--": false, "-a": false, "-": false, "": false, "1": false, "12": false, "1a": false,
		"A": false, "aB": false, "a_b": false, "a.b": false, "a b": false, "ä": false, "a\u0301": false, "a\u200b": false,
		long + "a": false, strings.Repeat("a", 63): false, strings.Repeat("a", 64): false} {
		testkit.Equal(t, name, lab.CheckName(name) == nil, good)
		if good && !gateway.IsLabel(name) {
			t.Errorf("%s is no label of a host name", name)
		}
		for _, text := range []string{
			"guests: {%q: {nics: [{name: n}]}}",
			"guests: {g: {nics: [{name: %q}]}}",
			"guests: {g: {sockets: [{name: %q}], nics: [{name: n, below: %[1]q}]}}",
			"guests: {g: {gpus: [{name: %q}], nics: [{name: n}]}}",
			"guests: {g: {nics: [{name: n}]}}\nuplinks: [{name: %q, tap: tap0}]",
		} {
			_, err := Parse("f", fmt.Appendf(nil, text, name))
			refused := err != nil && strings.Contains(err.Error(), "is no name")
			if refused == good {
				t.Errorf("%s: %v", fmt.Sprintf(text, name), err)
			}
			var line, column int
			if n, _ := fmt.Sscanf(fmt.Sprint(err), "f:%d:%d:", &line, &column); refused && n != 2 {
				t.Errorf("the error has no line and column: %v", err)
			}
		}
	}
}

func TestNamesThatAreTaken(t *testing.T) {
	for _, name := range []string{"gateway", "localhost"} {
		text := "guests:\n  " + name + ": {nics: [{name: n}]}"
		testkit.Must(Parse("f", []byte("gateway: off\n"+text)))(t)
		for _, first := range []string{"---", "gateway: " + lab.GatewayNAT, "gateway: " + lab.GatewayIsolated} {
			testkit.ErrorSays(t, testkit.Err(Parse("f", []byte(first+"\n"+text))), "f:3:", "a guest cannot be called "+name)
		}
	}
}
