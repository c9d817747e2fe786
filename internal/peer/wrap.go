package peer

import "fmt"

// Wrap says of an error what was being done; of none it makes none.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
