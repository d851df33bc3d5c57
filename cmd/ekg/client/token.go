package client

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
)

const (
	minToken = 20      // characters of a token that another program has made
	maxStdin = 1 << 10 // bytes
)

// tokenCommand creates a token for a user, or hashes an existing one.
func tokenCommand() *cli.Command {
	return &cli.Command{
		Name:  "token",
		Usage: "create a token for a user, and its hash for --users-file",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "stdin", Usage: "read a token from standard input, and print its hash"}},
		Action: func(c *cli.Context) error {
			if err := Arguments(c, 0); err != nil {
				return err
			}
			if c.Bool("stdin") {
				return hashToken(os.Stdin, c.App.Writer)
			}
			random := make([]byte, 32)
			if _, err := rand.Read(random); err != nil {
				return err
			}
			token := "ekg_" + base64.RawURLEncoding.EncodeToString(random)
			_, err := fmt.Fprintf(c.App.Writer, "token: %s\nhash: %s\n", token, tokenHash(token))
			return err
		},
	}
}

// hashToken prints the hash of the token in r.
func hashToken(r io.Reader, w io.Writer) error {
	b, err := io.ReadAll(io.LimitReader(r, maxStdin))
	if err != nil {
		return err
	}
	token := strings.TrimSpace(string(b))
	switch {
	case strings.ContainsAny(token, " \t\r\n"):
		return errors.New("standard input does not hold exactly one word")
	case len(token) < minToken:
		return fmt.Errorf("the token has fewer than %d characters: it could be guessed from its hash", minToken)
	}
	_, err = fmt.Fprintf(w, "hash: %s\n", tokenHash(token))
	return err
}

// tokenHash returns the entry of a token in a file of users.
func tokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha256:" + hex.EncodeToString(sum[:])
}
