//go:build race

package virtq

const raceEnabled = true
