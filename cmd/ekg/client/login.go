package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

// loginCommand is `ekg login`.
func loginCommand() *cli.Command {
	return &cli.Command{
		Name: "login", Usage: "store your token for the gateway at URL", ArgsUsage: "URL",
		Description: "The command reads the token from standard input, unless the URL has it. All commands about that\n" +
			"gateway use the token. The file is tokens.json in your configuration folder, and only you can read it.",
		Action: func(c *cli.Context) error {
			if err := Arguments(c, 1); err != nil {
				return err
			}
			g, err := newGatewayClient(c.Args().First(), "", "")
			if err != nil {
				return &UsageError{err}
			}
			defer g.close()
			if g.token == "" {
				if g.token, err = readToken(os.Stdin, c.App.ErrWriter); err != nil {
					return err
				}
			}
			if _, err := g.kernels(c.Context); err != nil { // a wrong token is not stored
				return err
			}
			path, err := storeToken(g.shown, g.token)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.App.ErrWriter, "ekg: the token for %s is in %s\n", g.shown, path)
			return err
		},
	}
}

// readToken reads the one word that standard input has.
func readToken(in io.Reader, prompt io.Writer) (string, error) {
	if _, err := fmt.Fprint(prompt, "Token: "); err != nil {
		return "", err
	}
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		text, err := term.ReadPassword(int(f.Fd()))
		if err != nil {
			return "", err
		}
		in = bytes.NewReader(append(text, '\n'))
		if _, err := fmt.Fprintln(prompt); err != nil {
			return "", err
		}
	}
	var token string
	if _, err := fmt.Fscanln(io.LimitReader(in, maxStdin), &token); err != nil {
		return "", fmt.Errorf("standard input does not hold exactly one word: %w", err)
	}
	return token, nil
}

// tokensFile returns the path of the file with the tokens of `ekg login`.
func tokensFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "ekg", "tokens.json"), nil
}

// storedTokens returns the tokens of `ekg login` by URL, and the path of their file.
func storedTokens() (all map[string]string, path string, err error) {
	all = map[string]string{}
	if path, err = tokensFile(); err != nil {
		return all, "", err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, path, nil
	}
	if err != nil {
		return nil, path, err
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, path, fmt.Errorf("%s: other users may read the tokens: set its mode to 0600", path)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, path, fmt.Errorf("%s: %w", path, err)
	}
	return all, path, nil
}

// storedToken returns the token that `ekg login` has stored for a gateway. It returns "" for a gateway without one, and
// where the user has no configuration folder.
func storedToken(shown string) (string, error) {
	all, path, err := storedTokens()
	if path == "" {
		return "", nil
	}
	return all[tokenKey(shown)], err
}

// storeToken keeps the token for a gateway, and returns the path of the file.
func storeToken(shown, token string) (path string, err error) {
	all, path, err := storedTokens()
	if err != nil {
		return "", err
	}
	all[tokenKey(shown)] = token
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return path, files.WriteJSON(path, all)
}

// tokenKey is a gateway's URL as the file has it.
func tokenKey(shown string) string { return strings.TrimRight(shown, "/") }
