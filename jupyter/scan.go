package jupyter

import "bytes"

// scanObject calls member with the key (raw, without quotes) and the raw value of each top-level member of a JSON
// object. It checks only what it needs to find the ends of values: it counts brackets and skips strings. It does not
// check the inside of values, and does not decode escapes in keys.
func scanObject(b []byte, member func(key, value []byte)) error {
	i := skipSpace(b, 0)
	if i == len(b) || b[i] != '{' {
		return malformed("not a JSON object")
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return atEnd(b, i+1)
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return malformed("object key expected at byte %d", i)
		}
		end, err := skipString(b, i)
		if err != nil {
			return err
		}
		key := b[i+1 : end-1]
		i = skipSpace(b, end)
		if i >= len(b) || b[i] != ':' {
			return malformed("colon expected at byte %d", i)
		}
		i = skipSpace(b, i+1)
		end, err = skipValue(b, i)
		if err != nil {
			return err
		}
		member(key, b[i:end])
		i = skipSpace(b, end)
		if i >= len(b) {
			return malformed("object does not end")
		}
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
		case '}':
			return atEnd(b, i+1)
		default:
			return malformed("comma expected at byte %d", i)
		}
	}
}

// checkValue returns an error unless b can stand as a JSON value inside an object.
func checkValue(b []byte) error {
	i := skipSpace(b, 0)
	if i < len(b) && b[i] == '{' {
		return scanObject(b, func(_, _ []byte) {})
	}
	end, err := skipValue(b, i)
	if err != nil {
		return err
	}
	return atEnd(b, end)
}

// atEnd returns an error unless only white space follows.
func atEnd(b []byte, i int) error {
	if i = skipSpace(b, i); i != len(b) {
		return malformed("more after the value at byte %d", i)
	}
	return nil
}

// skipSpace returns the index of the next byte that is not white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index behind the string that starts at b[i] == '"'.
func skipString(b []byte, i int) (int, error) {
	start := i
	i++
	for {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return 0, malformed("string at byte %d does not end", start)
		}
		i += n + 1
		// The quote ends the string unless an odd number of backslashes precedes it.
		k := i - 2
		for k > start && b[k] == '\\' {
			k--
		}
		if (i-2-k)%2 == 0 {
			return i, nil
		}
	}
}

// ValueEnd returns the length in bytes of the JSON value with which b begins. It finds the end by brackets and quotes,
// and does not check the value's inside. The error says that the value does not end.
func ValueEnd(b []byte) (int, error) { return skipValue(b, 0) }

// skipValue returns the index behind the value that starts at b[i].
func skipValue(b []byte, i int) (int, error) {
	if i >= len(b) {
		return 0, malformed("value expected at byte %d", i)
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipNested(b, i)
	}
	start := i
	for i < len(b) {
		switch c := b[i]; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '+', c == '.':
			i++ // numbers, true, false, null, and Python's NaN and Infinity
			continue
		}
		break
	}
	if i == start {
		return 0, malformed("value expected at byte %d", i)
	}
	return i, nil
}

// skipNested returns the index behind the object or array that starts at b[i].
func skipNested(b []byte, i int) (int, error) {
	start, depth := i, 0
	for i < len(b) {
		switch b[i] {
		case '"':
			end, err := skipString(b, i)
			if err != nil {
				return 0, err
			}
			i = end
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1, nil
			}
		}
		i++
	}
	return 0, malformed("value at byte %d does not end", start)
}
