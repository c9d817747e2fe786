package lab

import "fmt"

// FieldError says what is wrong with a field of a Description. Its text speaks of the flag that sets the field; who
// reads a lab file names the file's line instead (internal/lab/labfile).
type FieldError struct {
	Guest string // its name
	Part  string // of the guest: nics or gpus, as in a lab file
	Index int    // of the part
	Name  string // the part's
	Key   string // as in a lab file; "": it is the part as a whole
	Value string // the field's; "": Text says enough
	Text  string // what it may be instead, or why not
}

// fieldFlags are the flags that set fields of all NICs or GPUs of a command.
var fieldFlags = map[string]string{
	"nics model": "--nic", "nics mtu": "--mtu", "nics max-mtu": "--max-mtu", "nics rsc-usecs": "--rsc-usecs",
	"nics xdp": "--xdp", "nics queues": "--queues", "gpus memory": "--gpu-memory",
}

const modelNames = Virtio + " or " + GVE

// UnknownModel is the error of a model of NICs, given by a flag, that does not exist.
func UnknownModel(name string) error {
	return &FieldError{Part: "nics", Key: "model", Value: name, Text: modelNames}
}

func (e *FieldError) Error() string {
	if flag := fieldFlags[e.Part+" "+e.Key]; flag != "" {
		return e.says(flag)
	}
	name := e.Name
	if name == "" {
		name = fmt.Sprintf("%d of guest %s", e.Index, e.Guest)
	}
	return map[string]string{"nics": "NIC ", "gpus": "GPU "}[e.Part] + name + ": " + e.says(e.Key)
}

// InFile is the error as a lab file's reader says it, beside the field's line.
func (e *FieldError) InFile() string {
	if e.Key == "" {
		return e.Name + ": " + e.Text
	}
	return e.says(e.Key)
}

func (e *FieldError) says(field string) string {
	switch {
	case field == "":
		return e.Text
	case e.Value == "":
		return field + ": " + e.Text
	}
	return field + " " + e.Value + ": " + e.Text
}
