// Decides whether histories of a store are strictly serializable, with Porcupine.
//
// Input: one history per line (JSON, see type history). Output: one verdict per line, "NAME legal",
// "NAME illegal" or "NAME undecided" (the time limit was reached).
//
// The whole store is one object: its state is the value of every key. An operation reads some keys
// and writes some, at one moment between its call and its return. A history is linearizable for this
// object exactly if its transactions, reads and writes are strictly serializable.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// What was read or is written: a unique number for each value.
const (
	absent  = 0
	present = -1 // read only: an unknown value
)

// An access is a key's number and its value.
type access [2]int64

type operation struct {
	Client int   `json:"client"`
	Call   int64 `json:"call"`
	// 0: never returned, because its process was killed.
	Return int64 `json:"return"`
	// It may not have happened: its process was killed.
	Unknown bool     `json:"unknown"`
	Reads   []access `json:"reads"`
	Writes  []access `json:"writes"`
}

type history struct {
	Name string `json:"name"`
	// Values before the first operation, by key.
	Start []int64 `json:"start"`
	// The time limit in milliseconds.
	Limit int64       `json:"limit_ms"`
	Ops   []operation `json:"ops"`
	// If the history is illegal: a page that shows how far it can be ordered.
	Page string `json:"page"`
}

const word = 8

func at(state string, key int64) int64 {
	return int64(binary.LittleEndian.Uint64([]byte(state[key*word : key*word+word])))
}

func pack(values []int64) string {
	bytes := make([]byte, word*len(values))
	for i, value := range values {
		binary.LittleEndian.PutUint64(bytes[i*word:], uint64(value))
	}
	return string(bytes)
}

func holds(state string, reads []access) bool {
	for _, read := range reads {
		value := at(state, read[0])
		if read[1] == present && value != absent || read[1] == value {
			continue
		}
		return false
	}
	return true
}

// One step of the store. An operation of a killed process has a complete effect or none: if its reads
// do not hold, it has none. Never happening is equivalent to being the last.
func step(state, input, output interface{}) (bool, interface{}) {
	op, now := input.(*operation), state.(string)
	if !holds(now, op.Reads) {
		return op.Unknown, now
	}
	if len(op.Writes) == 0 {
		return true, now
	}
	bytes := []byte(now)
	for _, write := range op.Writes {
		binary.LittleEndian.PutUint64(bytes[write[0]*word:], uint64(write[1]))
	}
	return true, string(bytes)
}

func describe(input, output interface{}) string {
	op := input.(*operation)
	var text strings.Builder
	for _, read := range op.Reads {
		fmt.Fprintf(&text, "%d=%s ", read[0], name(read[1]))
	}
	for _, write := range op.Writes {
		fmt.Fprintf(&text, "%d:=%s ", write[0], name(write[1]))
	}
	if op.Unknown {
		text.WriteString("(killed)")
	}
	return text.String()
}

func name(value int64) string {
	switch value {
	case absent:
		return "none"
	case present:
		return "some"
	}
	return fmt.Sprintf("%x", value)
}

func model(start []int64) porcupine.Model {
	return porcupine.Model{
		Init:              func() interface{} { return pack(start) },
		Step:              step,
		DescribeOperation: describe,
	}
}

func check(h *history) (string, error) {
	ops := make([]porcupine.Operation, len(h.Ops))
	for i := range h.Ops {
		op := &h.Ops[i]
		for _, access := range append(append([]access{}, op.Reads...), op.Writes...) {
			if access[0] < 0 || access[0] >= int64(len(h.Start)) {
				return "", fmt.Errorf("no key %d", access[0])
			}
		}
		end := op.Return
		if end == 0 {
			end = math.MaxInt64
		}
		if end < op.Call {
			return "", fmt.Errorf("operation %d returns before it is called", i)
		}
		ops[i] = porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: end}
	}
	limit := time.Duration(h.Limit) * time.Millisecond
	store := model(h.Start)
	switch porcupine.CheckOperationsTimeout(store, ops, limit) {
	case porcupine.Ok:
		return "legal", nil
	case porcupine.Unknown:
		return "undecided", nil
	}
	if h.Page != "" {
		_, info := porcupine.CheckOperationsVerbose(store, ops, limit)
		if err := porcupine.VisualizePath(store, info, h.Page); err != nil {
			return "", err
		}
	}
	return "illegal", nil
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var h history
		if err := json.Unmarshal(line, &h); err != nil {
			fmt.Fprintln(os.Stderr, "not a history:", err)
			os.Exit(1)
		}
		verdict, err := check(&h)
		if err != nil {
			fmt.Fprintln(os.Stderr, h.Name+":", err)
			os.Exit(1)
		}
		fmt.Println(h.Name, verdict)
	}
}
