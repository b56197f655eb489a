// Starts `convgen lsp` for .conv files.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = () => {
  const [command, ...args] = workspace.getConfiguration("convgen").get("command");
  client = new LanguageClient("convgen", { command, args }, { documentSelector: [{ language: "conv" }] });
  return client.start();
};

exports.deactivate = () => client?.stop();
